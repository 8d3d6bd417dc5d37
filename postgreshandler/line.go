package postgreshandler

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/lokilock/loki/postgreshandler/internal/postgresname"
)

const (
	dialTimeout = 5 * time.Second // to connect and be listening
	byeTimeout  = time.Second     // to say good-bye
)

// patience is how long a connection that listens is waited for. Tests have less of it.
type patience struct {
	silence time.Duration // before a sign of life is asked for: a server that has frozen closes nothing
	sign    time.Duration // for that sign
	restore time.Duration // for a connection that broke to be restored
}

var defaultPatience = patience{silence: 5 * time.Second, sign: time.Second, restore: 3 * time.Second}

// line is where a handler's connections that listen go.
type line struct {
	db       *sql.DB
	config   *pgx.ConnConfig // of WithListenDSN; nil to go where the pool does
	table    postgresname.Table
	patience patience

	last *atomic.Pointer[pgx.ConnConfig] // how the pool's connections were made when one was asked last
}

// newListeners returns nil if nobody is to listen.
func newListeners(db *sql.DB, s settings) *listeners {
	if s.silent {
		return nil
	}
	return &listeners{line: line{db: db, config: s.listen, table: s.table, patience: s.patience, last: new(atomic.Pointer[pgx.ConnConfig])}}
}

// dial returns a connection that listens.
func (l line) dial(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := l.connect(ctx)
	if err != nil {
		return nil, err
	}
	if err := l.listen(ctx, conn); err != nil {
		hangUp(ctx, conn)
		return nil, err
	}
	return conn, nil
}

// connect goes where the pool did when it was asked last, and asks it again if that fails, since a password may not last. What kills the connection that listens has usually killed the pool's idle ones, which do not answer.
func (l line) connect(ctx context.Context) (*pgx.Conn, error) {
	if l.config != nil {
		return pgx.ConnectConfig(ctx, l.config)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := l.db.Conn(ended); !errors.Is(err, context.Canceled) {
		return nil, err // it has been closed, which database/sql says first
	}
	if last := l.last.Load(); last != nil {
		if conn, err := pgx.ConnectConfig(ctx, last); err == nil {
			return conn, nil
		}
	}
	config, err := l.pooled(ctx)
	if err != nil {
		return nil, err
	}
	l.last.Store(config)
	return pgx.ConnectConfig(ctx, config)
}

// listen has the server tell conn what is sent for the table. Being idle is its purpose, so no timeout for that is to
// end it. The session is its own, so nobody else meets the setting.
func (l line) listen(ctx context.Context, conn *pgx.Conn) error {
	if l.config == nil {
		// A pooler answers for the server when a connection is made, and has no process of the server's to name. What
		// it would do with LISTEN is to lend the connection that listens to somebody else.
		var process uint32
		if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&process); err != nil {
			return err
		}
		if process != conn.PgConn().PID() {
			return fmt.Errorf("there is a pooler between, through which nobody can listen: name the server itself with WithListenDSN: %w", errors.ErrUnsupported)
		}
	}
	_, err := conn.Exec(ctx, "SET idle_session_timeout = 0; LISTEN "+l.table.QuotedChannel()) // one simple query, no arguments
	if err == nil && l.config != nil {
		err = l.hears(ctx, conn)
	}
	return err
}

// hears has the pool send a message, and waits for it: WithListenDSN may name a pooler, or another database, and then
// nothing would ever come. The message names no key, so that it wakes nobody. Without a connection of the pool in time it is
// not known.
func (l line) hears(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, l.patience.sign)
	defer cancel()
	if _, err := l.db.ExecContext(ctx, "NOTIFY "+l.table.QuotedChannel()); err != nil {
		return nil // it says nothing about conn
	}
	for {
		n, err := conn.WaitForNotification(ctx)
		switch {
		case err == nil && n.Payload == "":
			return nil
		case pgconn.Timeout(err):
			return fmt.Errorf("what WithListenDSN names takes LISTEN and passes nothing on: a pooler that lends connections on, or another database: name the server itself: %w", errors.ErrUnsupported)
		case err != nil:
			return err
		}
	}
}

// pooled is how the pool's connections are made, as one of them tells: with what a connector or its callbacks put in, such
// as a password that does not last.
func (l line) pooled(ctx context.Context) (config *pgx.ConnConfig, err error) {
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	err = conn.Raw(func(driverConn any) error {
		c, ok := driverConn.(*stdlib.Conn)
		if !ok {
			return fmt.Errorf("the driver is not pgx, or something hides it: name the server with WithListenDSN: %w", errors.ErrUnsupported)
		}
		config = c.Conn().Config()
		config.OnNotification = nil // the application's own, which would keep them from the one who waits for them here
		speakUTF8(config)
		return nil
	})
	return config, err
}

// follow tells of each key that the server tells of, until the connection breaks or ctx ends, and then closes it.
func (l line) follow(ctx context.Context, conn *pgx.Conn, tell func(key string)) {
	defer hangUp(ctx, conn)
	for {
		n, err := l.wait(ctx, conn)
		switch {
		case err == nil:
			tell(n.Payload)
		case ctx.Err() != nil || !pgconn.Timeout(err) || l.ask(ctx, conn) != nil:
			return
		}
	}
}

func (l line) wait(ctx context.Context, conn *pgx.Conn) (*pgconn.Notification, error) {
	ctx, cancel := context.WithTimeout(ctx, l.patience.silence)
	defer cancel()
	return conn.WaitForNotification(ctx)
}

func (l line) ask(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, l.patience.sign)
	defer cancel()
	return conn.Ping(ctx)
}

func hangUp(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), byeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // what it cannot close is closed
}
