package mssqlhandler

import (
	"context"
	"database/sql/driver"
	"fmt"
	"net"
	"sync"

	mssql "github.com/microsoft/go-mssqldb"
	"github.com/microsoft/go-mssqldb/msdsn"
)

// connector is go-mssqldb's, with an end to logins. The driver looks at the context while it dials, and not while it waits
// for the server's first answers: where something takes connections and says nothing, each call would leave one behind
// that waits for ever.
type connector struct{ *mssql.Connector }

func newConnector(config msdsn.Config) driver.Connector {
	c := mssql.NewConnectorConfig(config)
	c.Dialer = dialer{net.Dialer{KeepAlive: config.KeepAlive}}
	return connector{c}
}

// Connect is ended by ctx at any point.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	l := &login{}
	stop := context.AfterFunc(ctx, l.cut)
	conn, err := c.Connector.Connect(context.WithValue(ctx, loginKey{}, l))
	if stop() {
		return conn, err
	}
	if err == nil {
		_ = conn.Close() // it was cut after its last answer
		return nil, ctx.Err()
	}
	return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
}

// login is the connections of one attempt: with multisubnetfailover, or a partner, there are several.
type login struct {
	mu    sync.Mutex // guards what follows
	conns []net.Conn
	over  bool
}

type loginKey struct{}

func (l *login) add(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, conn)
	if l.over {
		_ = conn.Close()
	}
}

func (l *login) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	for _, conn := range l.conns {
		_ = conn.Close()
	}
}

// dialer is net's, and tells the login what it has dialled.
type dialer struct{ net.Dialer }

func (d dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.Dialer.DialContext(ctx, network, address)
	if l, ok := ctx.Value(loginKey{}).(*login); ok && err == nil {
		l.add(conn)
	}
	return conn, err
}
