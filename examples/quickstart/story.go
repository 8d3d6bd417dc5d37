package main

// This file tells the story, and checks it.

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/lokilock/loki/examples/customhandler"
	"github.com/lokilock/loki/examples/internal/localredis"
)

type story struct {
	start time.Time

	mu  sync.Mutex // guards out
	out io.Writer
}

func (s *story) title(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "\n%s\n", text)
}

// tell prints what somebody does, and when.
func (s *story) tell(who, what string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, "%6.2fs  %-5s  %s\n", time.Since(s.start).Seconds(), who, fmt.Sprintf(what, args...))
}

// round has all workers start the job at once. It returns an error unless exactly one of them ran it, by a lock of
// store, and the others were told who that was.
func (s *story) round(ctx context.Context, workers []*worker, store string, job func(context.Context, *worker) error) error {
	var running, decided sync.WaitGroup
	decided.Add(len(workers))
	started, start := context.WithTimeout(ctx, expiry) // who runs is told before who skips
	defer start()
	tries := make([]try, len(workers))
	for i, w := range workers {
		running.Go(func() {
			t := w.try(ctx, func(ctx context.Context) error {
				s.tell(w.name, "has the lock and runs the job")
				start()
				decided.Done()
				decided.Wait() // the others are to find it held, however slow the machine
				return job(ctx, w)
			})
			if !t.outcome.Ran {
				decided.Done()
				<-started.Done()
			}
			switch {
			case t.holder() != "":
				s.tell(w.name, "skips: %s is on it", t.holder())
			case t.err != nil:
				s.tell(w.name, "fails: %v", t.err)
			default:
				s.tell(w.name, "is done; its lock came from the %s", t.outcome.Store)
			}
			tries[i] = t
		})
	}
	running.Wait()
	return check(tries, store)
}

func check(tries []try, store string) error {
	var ran []try
	for _, t := range tries {
		if t.outcome.Ran {
			ran = append(ran, t)
		}
	}
	if len(ran) != 1 {
		return fmt.Errorf("%d workers ran the job: %w", len(ran), errors.Join(errorsOf(tries)...))
	}
	winner := ran[0]
	if winner.err != nil {
		return fmt.Errorf("%s failed: %w", winner.worker.name, winner.err)
	}
	if string(winner.outcome.Store) != store {
		return fmt.Errorf("%s's lock came from the %s instead of the %s", winner.worker.name, winner.outcome.Store, store)
	}
	for _, t := range tries {
		if t.worker == winner.worker {
			continue
		}
		if err := t.wasSkippedFor(winner.worker); err != nil {
			return err
		}
	}
	return nil
}

func errorsOf(tries []try) (errs []error) {
	for _, t := range tries {
		errs = append(errs, t.err)
	}
	return errs
}

// nothingLeft waits until both stores are empty but for the key that remembers the last fence.
func (s *story) nothingLeft(ctx context.Context, primary *localredis.Server, db *sql.DB) error {
	for deadline := time.Now().Add(2 * expiry); ; {
		var left []string
		for _, key := range primary.Keys() {
			if !strings.HasSuffix(key, ":fence") {
				left = append(left, key)
			}
		}
		var rows int
		if err := db.QueryRowContext(ctx, "SELECT count(*) FROM loki_locks").Scan(&rows); err != nil {
			return err
		}
		if len(left) == 0 && rows == 0 {
			s.tell("", "No lock is left behind, in neither store.")
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("left behind: in the primary the keys %q, in the secondary %d rows", left, rows)
		}
		if err := work(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// openDatabase makes a database that is gone after close.
func openDatabase(ctx context.Context) (db *sql.DB, remove func() error, err error) {
	dir, err := os.MkdirTemp("", "loki-quickstart-")
	if err != nil {
		return nil, nil, err
	}
	db, err = sql.Open("sqlite", "file:"+filepath.Join(dir, "locks.db")+"?_pragma=busy_timeout(1000)&_pragma=journal_mode(wal)&_pragma=synchronous(normal)")
	if err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(dir))
	}
	remove = func() error { return errors.Join(db.Close(), os.RemoveAll(dir)) }
	if err := customhandler.CreateTable(ctx, db); err != nil {
		return nil, nil, errors.Join(err, remove())
	}
	return db, remove, nil
}

// silence is the logger of go-redis here.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}
