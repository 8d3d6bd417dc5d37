package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/cmd/lokiprove/referee"
	"github.com/lokilock/loki/internal/retry"
	"github.com/lokilock/loki/mssqlhandler"
	"github.com/lokilock/loki/redishandler"
	"github.com/lokilock/loki/redlockhandler"
)

// closeLimit is how long a worker's Close may take once everything is well.
const closeLimit = 10 * time.Second

// assignment is what a worker is told.
type assignment struct {
	Worker, Life int
	Key, Mode    string
	Expiry       time.Duration
	Seed         uint64
	Origin       time.Duration // the monotonic clock at the beginning of the proof
	Primary      []string      // the address of its proxy, or one for each server of a quorum
	Secondary    string        // likewise, or a DSN that leads there
	MSSQL        bool
}

// worker is a process that wants the lock again and again.
type worker struct {
	assignment
	rand   *rand.Rand
	locker *loki.Locker
	pools  map[string]*pool // by store

	mu  sync.Mutex // one line at a time
	out io.Writer  // unbuffered: what is written has been told, also if the process is killed the next moment
}

// workerMain is the main of a process that is a worker. It takes orders on its standard input, and ends when that does.
func workerMain(config string) int {
	redis.SetLogger(silence{})
	w := &worker{out: os.Stdout}
	if err := json.Unmarshal([]byte(config), &w.assignment); err != nil {
		fmt.Fprintln(os.Stderr, "the assignment is not readable:", err)
		return exitNoProof
	}
	w.rand = rand.New(rand.NewPCG(w.Seed, uint64(w.Worker)<<32|uint64(w.Life)))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	err := w.open()
	if err == nil {
		go func() {
			w.takeOrders(ctx, os.Stdin)
			cancel()
		}()
		for call := 1; ctx.Err() == nil; call++ {
			w.call(ctx, call)
			retry.Sleep(ctx, w.upTo(0.4))
		}
		closing, stop := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
		defer stop()
		err = w.locker.Close(closing)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitBroken
	}
	return 0
}

func (w *worker) open() error {
	config := loki.Config{
		ServiceKey: w.Key, Holder: fmt.Sprintf("worker %d, life %d", w.Worker, w.Life),
		Primary: &witness{referee.Primary, w.Key, w.primary(), w.tell},
		Observer: func(_ context.Context, e loki.Event) {
			r := referee.Record{What: referee.Told, Store: string(e.Store), Op: string(e.Op), Kind: string(e.Kind)}
			if e.Err != nil {
				r.Text = e.Err.Error()
			}
			w.tell(r)
		},
	}
	switch {
	case w.Mode == referee.Alone:
	case w.MSSQL:
		handler, err := mssqlhandler.Open(w.Secondary)
		if err != nil {
			return err
		}
		config.Secondary = &witness{referee.Secondary, w.Key, handler, w.tell}
	default:
		config.Secondary = &witness{referee.Secondary, w.Key, redishandler.New(w.client(referee.Secondary, &redis.Options{Addr: w.Secondary, ContextTimeoutEnabled: w.heeds()})), w.tell}
	}
	if w.Mode == referee.Sync {
		config.Mirror = loki.MirrorSync
	}
	locker, err := loki.New(config)
	w.locker = locker
	return err
}

// heeds reports whether the worker's clients heed deadlines, as every other worker's do: calls are made on their callers'
// goroutines then. The others are as most services have them, with the defaults.
func (w *worker) heeds() bool { return w.Worker%2 == 0 }

func (w *worker) primary() fullHandler {
	if len(w.Primary) == 1 {
		return redishandler.New(w.client(referee.Primary, &redis.Options{Addr: w.Primary[0], ContextTimeoutEnabled: w.heeds()}))
	}
	var clients []*redis.Client
	for i, addr := range w.Primary {
		clients = append(clients, w.client(referee.Server(i+1), &redis.Options{Addr: addr, ContextTimeoutEnabled: w.heeds()}))
	}
	return redlockhandler.New(clients)
}

func (w *worker) client(store string, options *redis.Options) *redis.Client {
	client := redis.NewClient(options)
	if w.pools == nil {
		w.pools = map[string]*pool{}
	}
	w.pools[store] = &pool{client: client}
	return client
}

// errOwn is what a closure returns now and then.
var errOwn = errors.New("the closure's own error")

// call asks for the lock once, in one of the ways there are.
func (w *worker) call(quit context.Context, number int) {
	ctx := context.WithValue(quit, callNumber{}, number)
	var out loki.Outcome
	opts := []loki.Option{loki.WithOutcome(&out)}
	works, fails := w.upTo(0.6), w.rand.IntN(10) == 0
	if w.rand.IntN(5) < 2 {
		works = w.upTo(3)
	}
	switch w.rand.IntN(8) {
	case 0, 1:
		opts = append(opts, loki.WithWait(w.upTo(3)))
	case 2:
		opts = append(opts, loki.WithoutRenewal())
	case 3:
		limited, cancel := context.WithTimeout(ctx, w.upTo(2))
		defer cancel()
		ctx = limited
	}

	w.tell(referee.Record{What: referee.Asked, Call: number})
	err := w.locker.ExecuteWithinLock(ctx, w.Expiry, func(ctx context.Context) error {
		lease, _ := loki.LeaseFromContext(ctx)
		w.tell(referee.Record{What: referee.Ran, Call: number, Store: string(out.Store), Fence: lease.Fence()})
		retry.Sleep(ctx, works)
		ended := referee.Record{What: referee.Ended, Call: number}
		var err error
		if fails {
			err = errOwn
			ended.Text = err.Error()
		}
		w.tell(ended)
		return err
	}, opts...)
	returned := referee.Record{What: referee.Returned, Call: number, OutcomeRan: out.Ran, Result: result(ctx, err), Reason: reason(err)}
	if err != nil {
		returned.Text = err.Error()
	}
	w.tell(returned)
}

// result is the line of the table in package loki that err is.
func result(ctx context.Context, err error) string {
	var handlerErr *loki.HandlerError
	switch {
	case err == nil:
		return referee.OK
	case errors.Is(err, loki.ErrLockLost):
		return referee.Lost
	case errors.Is(err, loki.ErrBusy):
		return referee.Busy
	case errors.Is(err, loki.ErrUnavailable):
		return referee.Unavailable
	case err == errOwn: //nolint:errorlint // untouched is the promise
		return referee.Own
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return referee.CtxEnded
	case errors.As(err, &handlerErr):
		return referee.Refused
	}
	return referee.Other
}

// reason is why a lock was lost.
func reason(err error) string {
	switch {
	case errors.Is(err, loki.ErrConflict):
		return "conflict"
	case errors.Is(err, loki.ErrNotHeld):
		return "not held"
	case errors.Is(err, loki.ErrExpired):
		return "expired"
	}
	return ""
}

// tell writes a record. It may be called by many goroutines at once.
func (w *worker) tell(r referee.Record) {
	r.Worker, r.Life, r.At = w.Worker, w.Life, monotonic()-w.Origin
	if r.Sent != 0 {
		r.Sent -= w.Origin
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	line, err := json.Marshal(r)
	if err == nil {
		_, err = w.out.Write(append(line, '\n'))
	}
	if err != nil {
		os.Exit(exitNoProof) // nobody listens any more
	}
}

// upTo is a random part of a number of expiries.
func (w *worker) upTo(expiries float64) time.Duration {
	return time.Duration(w.rand.Float64() * expiries * float64(w.Expiry))
}

// silence keeps go-redis from writing about each connection that broke: that they do is the point.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
