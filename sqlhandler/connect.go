package sqlhandler

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"time"
)

// probeTime is how long a connection of a pool that database/sql does not see is waited for.
const probeTime = 25 * time.Millisecond

// reportTime is how long before the end of a call it stops waiting, so that its caller still reads the reason.
const reportTime = 50 * time.Millisecond

// connect returns a connection for the attempt's statement.
func (a *attempt) connect() (*connection, error) {
	db := a.traffic.db
	before := db.Stats()
	a.traffic.sees(before)
	opened := make(chan struct{})
	if before.Idle == 0 && !isFull(before) && a.traffic.keeps(before) {
		a.opening.Store(&opened)
	}
	a.idled.Store(before.Idle > 0 || !a.traffic.keeps(before)) // it may have been idle in another pool, such as pgxpool's
	a.holds.Store(!isFull(before))
	conn, err := a.traffic.connect(a.ctx, a.purpose(), a.probe)
	defer close(opened)
	a.holds.Store(err == nil)
	if err == nil {
		a.sent = true
		f := a.traffic.known(conn.driver)
		a.cold.Store(f.isCold())
		if time.Since(f.at) < freshTime {
			a.idled.Store(false)
		}
	}
	return conn, err
}

// sees notes whether database/sql keeps idle connections of this pool. It keeps none of pgxpool's.
func (t *traffic) sees(s sql.DBStats) {
	if s.Idle > 0 && !t.keepsIdle.Load() {
		t.keepsIdle.Store(true)
	}
}

// keeps reports whether database/sql keeps idle connections of this pool, as far as it is known.
func (t *traffic) keeps(s sql.DBStats) bool { return t.keepsIdle.Load() || s.MaxIdleClosed == 0 }

// freshConn is a driver's connection that has answered. Database/sql does not say which connection it hands out, nor for
// how long that was idle.
type freshConn struct {
	conn  any
	at    time.Time
	isNew bool // its login is all that it has answered
}

// isCold reports whether the first answer may take long.
func (f freshConn) isCold() bool { return f.isNew && time.Since(f.at) < loginLinger }

// freshen notes that conn has answered, in place of what has not for the longest time.
func (t *traffic) freshen(conn any, isNew bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if conn == nil || !reflect.TypeOf(conn).Comparable() {
		return
	}
	oldest := &t.fresh[0]
	for i := range t.fresh {
		f := &t.fresh[i]
		if f.conn == conn {
			oldest = f
			break
		}
		if f.at.Before(oldest.at) {
			oldest = f
		}
	}
	*oldest = freshConn{conn, time.Now(), isNew}
}

// known returns what is known of conn, zero if nothing is.
func (t *traffic) known(conn any) freshConn {
	if conn == nil || !reflect.TypeOf(conn).Comparable() {
		return freshConn{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.fresh {
		if f.conn == conn {
			return f
		}
	}
	return freshConn{}
}

// probe returns a connection where database/sql takes them from another pool, such as pgxpool's, whose idle ones it cannot
// discard: as long as there is none it asks for another beside, for a moment each, after which that pool discards it.
func (t *traffic) probe(ctx context.Context) (*sql.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		conn *sql.Conn
		err  error
	}
	results := make(chan result)
	ask := func(ctx context.Context, failed bool) {
		conn, err := t.db.Conn(ctx)
		if err != nil && !failed {
			return
		}
		select {
		case results <- result{conn, err}:
		case <-ctx.Done():
			if conn != nil {
				_ = conn.Close()
			}
		}
	}
	go ask(ctx, true)
	tick := time.NewTicker(probeTime)
	defer tick.Stop()
	for {
		select {
		case r := <-results:
			return r.conn, r.err
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
			go func() {
				ctx, cancel := context.WithTimeout(ctx, probeTime)
				defer cancel()
				ask(ctx, false)
			}()
		}
	}
}

// purpose returns what the attempt's connection is for.
func (a *attempt) purpose() purpose {
	if a.op == "extend" || a.op == "release" {
		return toHold
	}
	return toAcquire
}

// connect returns a connection. It gives up a little before ctx ends, while the caller still reads the reason.
func (t *traffic) connect(ctx context.Context, p purpose, probe bool) (*connection, error) {
	db, begun := t.db, time.Now()
	until, cancel := beforeEnd(ctx)
	defer cancel()
	var conn *connection
	var err error
	switch {
	case probe:
		conn, err = t.logins.take(until, t.probe)
	case t.keeps(db.Stats()):
		conn, err = t.logins.conn(until, p)
	default: // they are another pool's, or each call shall have a new one
		conn, err = t.logins.take(until, db.Conn)
	}
	if until.Err() == nil {
		return conn, err
	}
	if err == nil { // too late for this statement, but not for the next one
		_ = conn.Close()
		err = until.Err()
	}
	if ctx.Err() != nil {
		return nil, err
	}
	waited := time.Since(begun).Round(time.Millisecond)
	if isFull(db.Stats()) {
		return nil, &noConnection{fmt.Sprintf("the pool had no connection free within %v (%s): raise SetMaxOpenConns, hold connections for a shorter time, "+
			"or give the handler a *sql.DB of its own", waited, stats(db)), nil}
	}
	unready := &noConnection{why: fmt.Sprintf("no connection to the server was ready within %v: dial, TLS and login had not ended (a connection that is being made counts "+
		"as open and in use; %s)", waited, stats(db))}
	if failed := t.logins.failed.Load(); !isEnd(err) {
		unready.cause = err
	} else if failed != nil {
		unready.cause = fmt.Errorf("the last login: %w", *failed)
	}
	return nil, unready
}

// isEnd reports whether err is a context's own: database/sql waits no longer, and no driver says more.
func isEnd(err error) bool {
	return err == context.DeadlineExceeded || err == context.Canceled //nolint:errorlint // what wraps one says more
}

// beforeEnd is ctx with a deadline that leaves time for an error to be reported.
func beforeEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-min(time.Until(deadline)/10, reportTime)))
}

// noConnection is an error of a statement that was not sent: there was no connection for it, or no turn, in time.
type noConnection struct {
	why   string
	cause error // what the driver ended with; nil if it did not say
}

func (e *noConnection) Error() string { return e.why }

func isFull(s sql.DBStats) bool { return s.MaxOpenConnections > 0 && s.InUse >= s.MaxOpenConnections }

// stats is the state of the pool, for an error.
func stats(db *sql.DB) string {
	s := db.Stats()
	most := "no limit"
	if s.MaxOpenConnections > 0 {
		most = fmt.Sprintf("SetMaxOpenConns %d", s.MaxOpenConnections)
	}
	return fmt.Sprintf("sql.DB.Stats: %d open, %d in use, %d idle, %s, %d waits of %v in all", s.OpenConnections, s.InUse, s.Idle, most,
		s.WaitCount, s.WaitDuration.Round(time.Millisecond))
}
