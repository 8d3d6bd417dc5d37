package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/lokilock/loki/cmd/lokiprove/referee"
	"github.com/lokilock/loki/internal/faultproxy"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/internal/retry"
)

const (
	progressPause = 10 * time.Second

	// expiryGrace is for what is read a moment after a claim has expired, by another connection.
	expiryGrace = 100 * time.Millisecond
)

// prove makes a history. If ctx ends early it is a shorter one.
func prove(ctx context.Context, tb redistest.TB, s settings, faults []fault, out io.Writer) (_ []referee.Record, err error) {
	st, err := startStores(ctx, tb, s)
	if err != nil {
		return nil, err
	}
	b := &book{origin: monotonic()}
	if s.history != "" {
		f, err := os.Create(s.history)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		b.copy = json.NewEncoder(f)
	}
	setting := s.forReferee()
	b.add(referee.Record{What: referee.Began, Setting: setting})
	_, _ = fmt.Fprintf(out, "%d workers, mode %s, expiry %v, %v, about %v faults per second, seed %d\non %s\n",
		s.workers, s.mode, s.expiry, s.length, s.rate, s.seed, setting.Stores)

	key := fmt.Sprintf("proof-%d-%d", os.Getpid(), time.Now().UnixNano()) // a SQL Server may be shared
	fleet, err := startFleet(ctx, tb, s, st, b, key)
	if err != nil {
		return nil, err
	}
	stopProgress := progress(ctx, b, out)
	n := &nemesis{stores: st, fleet: fleet, book: b}
	if err := n.run(ctx, faults); err != nil {
		return nil, err
	}
	retry.Sleep(ctx, s.length-tail*s.expiry-(monotonic()-b.origin))
	if ctx.Err() == nil {
		b.write(referee.Record{What: referee.Healed})
		retry.Sleep(ctx, tail*s.expiry)
	}
	stopProgress()

	late := context.WithoutCancel(ctx)
	endFleet(late, fleet)
	retry.Sleep(late, s.away()+expiryGrace)
	left, err := st.leftovers(late, key)
	if err != nil {
		return nil, err
	}
	for _, r := range left {
		b.write(r)
	}
	return b.records, b.failed
}

// startFleet starts the workers, each with a way of its own to each store.
func startFleet(ctx context.Context, tb redistest.TB, s settings, st *stores, b *book, key string) ([]*member, error) {
	var fleet []*member
	for i := range s.workers {
		m := &member{book: b, ways: map[string]*faultproxy.Proxy{}, assignment: assignment{
			Worker: i + 1, Key: key, Mode: s.mode, Expiry: s.expiry, Seed: s.seed, Origin: b.origin, MSSQL: st.mssql != nil,
		}}
		for _, to := range st.primaries() {
			m.ways[to.store] = faultproxy.Start(tb, to.address)
			m.Primary = append(m.Primary, m.ways[to.store].Addr())
		}
		if s.mode != referee.Alone {
			m.ways[referee.Secondary] = faultproxy.Start(tb, st.address)
			m.Secondary = st.secondaryThrough(m.ways[referee.Secondary].Addr())
		}
		if err := m.start(ctx); err != nil {
			return nil, err
		}
		tb.Cleanup(func() {
			select {
			case <-m.process.ended:
			default:
				m.kill()
			}
		})
		fleet = append(fleet, m)
	}
	return fleet, nil
}

func endFleet(ctx context.Context, fleet []*member) {
	ctx, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	var all sync.WaitGroup
	for _, m := range fleet {
		all.Go(func() { m.end(ctx) })
	}
	all.Wait()
}

// progress tells now and then that something is going on.
func progress(ctx context.Context, b *book, out io.Writer) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() {
		ticker := time.NewTicker(progressPause)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				_, _ = fmt.Fprintf(out, "%4.0fs  %d runs, %d faults\n", (monotonic() - b.origin).Seconds(), b.count(referee.Ran), b.count(referee.Fault))
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		telling.Wait()
	}
}
