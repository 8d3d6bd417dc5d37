package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki/cmd/lokiprove/referee"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/migrations"
	"github.com/lokilock/loki/mssqlhandler"
)

// stores are the servers. The primary is one of a pair, of which the other follows it as a replica, or a quorum.
type stores struct {
	tb      redistest.TB
	voters  []*voter      // the quorum; if there is one, there is no pair
	away    time.Duration // how long one of them is away before it comes back empty
	pair    [2]*redistest.Server
	clients [2]*redis.Client
	leads   int // which of the pair is the primary
	router  *router

	secondary *redis.Client         // nil if there is none, or another
	mssql     *mssqlhandler.Handler // likewise
	dsn       *url.URL
	address   string // of the secondary
}

func startStores(ctx context.Context, tb redistest.TB, s settings) (*stores, error) {
	st := &stores{tb: tb, away: s.away()}
	if s.quorum > 0 {
		var err error
		if st.voters, err = startVoters(tb, s.quorum); err != nil {
			return nil, err
		}
	} else {
		st.startPair(ctx)
	}
	switch {
	case s.mode == referee.Alone:
	case s.mssql != "":
		return st, st.openMSSQL(ctx, s.mssql)
	default:
		patiently(tb, func(tb redistest.TB) {
			server := redistest.Start(tb)
			st.secondary, st.address = server.Client(st.tb), server.Addr()
		})
	}
	return st, nil
}

func (st *stores) startPair(ctx context.Context) {
	for i := range st.pair {
		patiently(st.tb, func(tb redistest.TB) {
			// A replica is to be of use at once, not after the pause in which others might want to join.
			st.pair[i] = redistest.Start(tb, "--repl-diskless-sync-delay", "0")
		})
		st.clients[i] = st.pair[i].Client(st.tb)
	}
	st.router = startRouter(ctx, st.tb, st.pair[0].Addr())
	st.follow(ctx)
}

// target is where a way leads.
type target struct{ store, address string }

// primaries are the servers that a worker's primary consists of: the leader of the pair, or each one of the quorum.
func (st *stores) primaries() []target {
	if len(st.voters) == 0 {
		return []target{{referee.Primary, st.router.addr()}}
	}
	var all []target
	for _, v := range st.voters {
		all = append(all, target{v.name, v.Addr()})
	}
	return all
}

func (st *stores) openMSSQL(ctx context.Context, dsn string) error {
	var err error
	if st.dsn, err = url.Parse(dsn); err != nil || st.dsn.Scheme != "sqlserver" {
		return errors.New("-mssql needs a DSN of the form sqlserver://user:password@host:port?database=name, so that its way can lead through a proxy")
	}
	st.address = st.dsn.Host
	if st.dsn.Port() == "" {
		st.address = net.JoinHostPort(st.dsn.Hostname(), "1433")
	}
	if st.mssql, err = mssqlhandler.Open(dsn); err != nil {
		return err
	}
	st.tb.Cleanup(func() { _ = st.mssql.Close() })
	return applyMigrations(ctx, dsn)
}

// secondaryThrough is what a worker has to open to get to the secondary by way of a proxy.
func (st *stores) secondaryThrough(proxy string) string {
	if st.dsn == nil {
		return proxy
	}
	through := *st.dsn
	through.Host = proxy
	return through.String()
}

// follow makes the other one of the pair a replica of the primary. It is empty, or about to be.
func (st *stores) follow(ctx context.Context) {
	host, port, _ := net.SplitHostPort(st.pair[st.leads].Addr())
	st.replicaOf(ctx, host, port)
}

// detach ends the replica's following: from here on it misses what is written.
func (st *stores) detach(ctx context.Context) {
	st.replicaOf(ctx, "NO", "ONE")
}

func (st *stores) replicaOf(ctx context.Context, host, port string) {
	patiently(st.tb, func(tb redistest.TB) {
		if err := st.clients[1-st.leads].ReplicaOf(ctx, host, port).Err(); err != nil {
			tb.Fatalf("REPLICAOF %s %s: %v", host, port, err)
		}
	})
}

// promote puts the replica into the primary's place. The old primary dies, comes back empty and follows.
func (st *stores) promote(ctx context.Context) {
	st.pair[st.leads].Kill()
	st.leads = 1 - st.leads
	st.router.lead(st.pair[st.leads].Addr())
	patiently(st.tb, func(tb redistest.TB) { st.pair[1-st.leads].Restart(tb) })
	st.follow(ctx)
}

// server is the one that a fault meets: one of the quorum, or whichever of the pair is the primary now.
func (st *stores) server(name string) *redistest.Server {
	if v := st.voter(name); v != nil {
		return v.Server
	}
	return st.pair[st.leads]
}

// voter is nil for the pair.
func (st *stores) voter(name string) *voter {
	for _, v := range st.voters {
		if v.name == name {
			return v
		}
	}
	return nil
}

func (st *stores) kill(name string) {
	if v := st.voter(name); v != nil {
		v.kill()
		return
	}
	st.server(name).Kill()
}

func (st *stores) restartEmpty(ctx context.Context, name string) error {
	if v := st.voter(name); v != nil {
		return v.restartEmpty(ctx, st.tb, st.away)
	}
	patiently(st.tb, func(tb redistest.TB) { st.server(name).Restart(tb) })
	return nil
}

// leftovers tells which claims the stores still keep.
func (st *stores) leftovers(ctx context.Context, key string) ([]referee.Record, error) {
	var found []referee.Record
	look := func(store string, client *redis.Client) error {
		more, err := heldKeys(ctx, store, client)
		found = append(found, more...)
		return err
	}
	var err error
	for _, v := range st.voters { // each one: a minority that keeps a claim is in the way of others too
		err = errors.Join(err, look(v.name, v.client))
	}
	if len(st.voters) == 0 {
		err = look(referee.Primary, st.clients[st.leads])
	}
	switch {
	case err != nil:
		return nil, err
	case st.secondary != nil:
		return found, look(referee.Secondary, st.secondary)
	case st.mssql != nil:
		holder, held, err := st.mssql.Inspect(ctx, key)
		if held {
			found = append(found, leftover(referee.Secondary, fmt.Sprintf("%q is held by %s until %v", key, holder.ID, holder.Until.UTC().Format(time.TimeOnly))))
		}
		return found, err
	}
	return found, nil
}

func leftover(store, text string) referee.Record {
	return referee.Record{What: referee.Leftover, Store: store, Text: text}
}

// heldKeys looks at every key of a server of our own: also at one that nobody would look for.
func heldKeys(ctx context.Context, store string, client *redis.Client) ([]referee.Record, error) {
	var found []referee.Record
	keys := client.Scan(ctx, 0, "*", 1000).Iterator()
	for keys.Next(ctx) {
		key := keys.Val()
		if strings.HasSuffix(key, ":fence") {
			continue // remembered on purpose
		}
		value, err := client.Get(ctx, key).Result()
		if errors.Is(err, redis.Nil) {
			continue // it expired a moment ago
		}
		left, err2 := client.PTTL(ctx, key).Result()
		if err := errors.Join(err, err2); err != nil {
			return nil, fmt.Errorf("looking at %q: %w", key, err)
		}
		found = append(found, leftover(store, fmt.Sprintf("%q is %q for %v", key, value, left)))
	}
	return found, keys.Err()
}

func applyMigrations(ctx context.Context, dsn string) error {
	db, err := sql.Open("sqlserver", dsn)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	return migrations.Apply(ctx, db)
}
