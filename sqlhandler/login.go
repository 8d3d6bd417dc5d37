package sqlhandler

import (
	"context"
	"database/sql"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// coldTime is for how long a session that begins can keep the next one from beginning. It may have gone into nothing, or
	// wait for a row.
	coldTime = time.Second

	// beginTime is what all sessions that begin at once may take, one after the other. Nothing that a handler sends costs a
	// server more, and one that is slow at it is the slower the more of them it has at once.
	beginTime = coldTime / 2

	// maxDeaf is how many logins may be under way, with those whose time is over: not every driver heeds a context.
	maxDeaf = 16

	// loginLinger is how long a login goes on that its caller has given up. The Locker lets a statement go on for as long.
	loginLinger = 5 * time.Second
)

// logins makes the new connections of a pool.
//
// Database/sql ends a login with its caller's context. Where a login takes longer than a call may, each call would begin one,
// and none would ever have a connection. So one login at a time outlives its caller, and leaves its connection to the pool;
// and a caller that finds a session beginning, from its login until its first answer, waits for a connection instead of
// beginning another. Renewals and releases come first.
type logins struct {
	traffic *traffic
	passed  [2]chan *sql.Conn // connections that another caller has done with, by [purpose]
	taking  atomic.Int32      // callers that are taking a connection which is idle

	mu      sync.Mutex    // guards what follows
	waiting [2]int        // callers without a login of their own, by [purpose]
	cold    []*session    // those that begin
	takes   time.Duration // how long the last one took to begin
	deaf    int           // logins that have not returned
	kept    bool          // one that outlives its caller is under way
	changed chan struct{}

	// failed is what the last such login ended with whose time ended; nil once a login has succeeded. The driver says only
	// then why it was not ready, for instance that one of two servers refused it while the other was silent.
	failed atomic.Pointer[error]
}

// purpose is what a connection is for.
type purpose int

const (
	toHold    purpose = iota // a renewal or a release
	toAcquire                // an acquisition, or what is sent for no claim
)

// session is one that begins.
type session struct{ since time.Time }

func newLogins(t *traffic) *logins {
	return &logins{traffic: t, takes: coldTime, passed: [2]chan *sql.Conn{make(chan *sql.Conn), make(chan *sql.Conn)}, changed: make(chan struct{})}
}

// connection is one of the pool's that was taken for one statement.
type connection struct {
	*sql.Conn
	driver   any  // the driver's
	answered bool // the statement was
	traffic  *traffic
	session  *session // nil unless it begins
}

func (t *traffic) taken(conn *sql.Conn, s *session) *connection {
	c := &connection{Conn: conn, traffic: t, session: s}
	_ = conn.Raw(func(d any) error { c.driver = d; return nil })
	return c
}

// Close passes the connection on to a caller who waits for one, or gives it back to the pool, which may close it.
func (c *connection) Close() error {
	t := c.traffic
	defer t.logins.over(c.session, c.answered)
	if c.answered {
		t.freshen(c.driver, false)
		if !isFull(t.db.Stats()) { // or the application may wait, too
			for _, passed := range t.logins.passed {
				select {
				case passed <- c.Conn:
					return nil
				default:
				}
			}
		}
	}
	return c.Conn.Close()
}

// over notes that a session, if there is one, does not begin any more, and wakes those who wait.
func (l *logins) over(s *session, answered bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s != nil && answered {
		l.takes = time.Since(s.since)
	}
	if i := slices.Index(l.cold, s); i >= 0 {
		l.cold = slices.Delete(l.cold, i, i+1)
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// conn returns a connection that is idle, or a new one. It waits until ctx ends.
func (l *logins) conn(ctx context.Context, p purpose) (*connection, error) {
	l.wait(p, 1)
	tick := time.NewTicker(probeTime) // nobody says when the application gives a connection back
	defer tick.Stop()
	db := l.traffic.db
	var own *login // the one that this caller has begun
	defer func() {
		if own == nil {
			l.wait(p, -1)
			return
		}
		own.leave(ctx)
	}()
	for {
		l.mu.Lock()
		changed := l.changed
		l.mu.Unlock()
		if s := db.Stats(); isFull(s) && own == nil {
			return l.take(ctx, db.Conn) // database/sql has a queue
		} else if int(l.taking.Add(1)) <= s.Idle {
			defer l.taking.Add(-1)
			return l.take(ctx, db.Conn)
		}
		l.taking.Add(-1)
		if own == nil {
			own = l.begin(ctx, p)
		}
		var results <-chan loginResult
		if own != nil {
			results = own.results
		}
		select {
		case r := <-results:
			if r.err == nil {
				return l.traffic.taken(r.conn, own.session), nil
			}
			if end, ok := ctx.Deadline(); ok && time.Until(end) <= 0 {
				<-ctx.Done() // the login had the same time
			}
			return nil, r.err
		case conn := <-l.passed[p]:
			return l.traffic.taken(conn, nil), nil
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return nil, l.reason(ctx, own)
		}
	}
}

func (l *logins) wait(p purpose, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting[p] += n
}

// take returns what from returns.
func (l *logins) take(ctx context.Context, from func(context.Context) (*sql.Conn, error)) (*connection, error) {
	conn, err := from(ctx)
	if err != nil {
		return nil, err
	}
	c := l.traffic.taken(conn, nil)
	if l.traffic.known(c.driver).isCold() {
		c.session = &session{time.Now()}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.cold = append(l.cold, c.session)
	}
	return c, nil
}

// login is one that is under way.
type login struct {
	*session
	results chan loginResult
	left    chan struct{} // closed when its caller waits no longer
	kept    bool          // it outlives its caller
	end     context.CancelFunc
}

type loginResult struct {
	conn *sql.Conn
	err  error
}

// begin begins a login, unless enough sessions are beginning, or the next one is another caller's.
func (l *logins) begin(ctx context.Context, p purpose) *login {
	l.mu.Lock()
	defer l.mu.Unlock()
	takes, beginning := max(l.takes, beginTime/maxAcquiring), 0
	for _, s := range l.cold {
		if age := time.Since(s.since); age < coldTime {
			takes = max(takes, age)
			beginning++
		}
	}
	if l.deaf >= maxDeaf || p == toAcquire && l.waiting[toHold] > 0 || beginning >= max(1, int(beginTime/takes)) {
		return nil
	}
	n := &login{session: &session{time.Now()}, results: make(chan loginResult), left: make(chan struct{}), kept: !l.kept}
	deadline, ok := ctx.Deadline()
	if ctx = context.WithoutCancel(ctx); n.kept || !ok {
		ctx, n.end = context.WithCancel(ctx)
	} else {
		ctx, n.end = context.WithDeadline(ctx, deadline)
	}
	l.waiting[p]--
	l.cold, l.deaf, l.kept = append(l.cold, n.session), l.deaf+1, true
	stop := context.AfterFunc(ctx, func() { l.loginOver(n, nil) }) // the driver may not return then
	go func() {
		conn, err := l.traffic.db.Conn(ctx)
		if n.kept && ctx.Err() != nil && err != nil && !isEnd(err) {
			l.failed.Store(&err)
		}
		if stop() {
			l.loginOver(n, conn)
			n.end()
		}
		l.mu.Lock()
		l.deaf--
		l.mu.Unlock()
		select {
		case n.results <- loginResult{conn, err}:
		case <-n.left:
			if err == nil {
				_ = conn.Close() // into the pool
			}
			l.over(n.session, false)
		}
	}()
	return n
}

// loginOver notes that the login is over, with a connection or nil. Its session begins until the first answer.
func (l *logins) loginOver(n *login, conn *sql.Conn) {
	if conn == nil {
		l.over(n.session, false)
	} else {
		_ = conn.Raw(func(c any) error { l.traffic.freshen(c, true); return nil })
		l.failed.Store(nil)
	}
	if n.kept {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.kept = false
	}
}

// reason returns why a login is not ready at the end of its caller's ctx, as far as the driver says so.
func (l *logins) reason(ctx context.Context, n *login) error {
	if n == nil || n.kept {
		return ctx.Err()
	}
	if ctx.Err() == context.Canceled {
		n.end()
	}
	select {
	case r := <-n.results:
		if r.err != nil {
			return r.err
		}
		_ = r.conn.Close() // too late for this caller
		l.over(n.session, false)
	case <-time.After(reportTime / 2):
	}
	return ctx.Err()
}

// leave leaves a login to itself. One whose caller has had another connection meanwhile goes on, too.
func (n *login) leave(ctx context.Context) {
	if n.kept || ctx.Err() == nil {
		time.AfterFunc(loginLinger, n.end)
	} else {
		n.end()
	}
	close(n.left)
}
