package main

// This file counts how often each occurrence ran.

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// tally knows of an occurrence when all instances have come to it.
type tally struct {
	instances int
	complete  chan occurrence

	mu   sync.Mutex // guards open
	open map[time.Time]occurrence
}

type occurrence struct {
	at      time.Time
	ran     []string
	skipped []string
	err     error
}

func newTally(instances int) *tally {
	return &tally{instances: instances, complete: make(chan occurrence, occurrences), open: make(map[time.Time]occurrence)}
}

func (t *tally) add(at time.Time, name string, ran bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.open[at]
	o.at, o.err = at, errors.Join(o.err, err)
	if ran {
		o.ran = append(o.ran, name)
	} else {
		o.skipped = append(o.skipped, name)
	}
	t.open[at] = o
	if len(o.ran)+len(o.skipped) < t.instances {
		return
	}
	delete(t.open, at)
	select {
	case t.complete <- o:
	default: // enough has been seen
	}
}

// await returns an error unless each of the next n occurrences ran once.
func (t *tally) await(ctx context.Context, n int) error {
	for range n {
		select {
		case o := <-t.complete:
			if o.err != nil {
				return o.err
			}
			fmt.Printf("%s  ran on %s; skipped by %s\n", o.at.Format(time.TimeOnly), list(o.ran), list(o.skipped))
			if len(o.ran) != 1 {
				return fmt.Errorf("the occurrence at %s ran %d times", o.at.Format(time.TimeOnly), len(o.ran))
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	fmt.Println("Each occurrence ran once.")
	return nil
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, " and ")
}
