package loki

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// EventKind says what happened. The values are stable strings, fit for a metric's label.
type EventKind string

// What an observer is told. The level is that of [LogEvents].
const (
	KindAcquired       EventKind = "acquired"         // debug: Handler granted the lock, fn is about to run
	KindReleased       EventKind = "released"         // debug: Handler has let the claim go, or keeps it for a minimum hold and no longer
	KindRenewed        EventKind = "renewed"          // debug: Handler has confirmed the lease
	KindMirrored       EventKind = "mirrored"         // debug: the secondary has recorded the lock
	KindBusy           EventKind = "busy"             // debug: held elsewhere, fn did not run
	KindDone           EventKind = "done"             // debug: the occurrence has been run already, fn did not run
	KindTakenBack      EventKind = "taken_back"       // debug: a claim of unknown outcome was removed from Handler, if it was there
	KindFellBack       EventKind = "fell_back"        // warn: the primary is unavailable and the secondary was asked; of a running lease (Op is extend), it goes on by the secondary
	KindRecovered      EventKind = "recovered"        // info: the primary answers again that was left alone after a failure, for Took; of a running lease (Op is extend), it goes on by the primary again
	KindRenewFailed    EventKind = "renew_failed"     // warn: no store confirmed the lease; tried again until its window closes
	KindMirrorFailed   EventKind = "mirror_failed"    // warn: the secondary did not record the lock; it stays due
	KindMirrorRefused  EventKind = "mirror_refused"   // error: the same, by somebody's mistake, such as a wrong password, which no retry mends
	KindMirrorShed     EventKind = "mirror_shed"      // warn: too many mirror writes are waiting; this one stays due
	KindReleaseFailed  EventKind = "release_failed"   // warn: a release failed; retried until the claim expires
	KindTakeBackFailed EventKind = "take_back_failed" // warn: the same for a claim of unknown outcome
	KindConflict       EventKind = "conflict"         // warn: the secondary holds the key for somebody else
	KindUnavailable    EventKind = "unavailable"      // error: no store answered, fn did not run
	KindRefused        EventKind = "refused"          // error: a store refused by somebody's mistake, fn did not run
	KindLost           EventKind = "lost"             // error: the lock ended while fn was running
	KindRecordFailed   EventKind = "record_failed"    // error: a store did not record an occurrence that was run; tried again for a minute
	KindPanic          EventKind = "panic"            // error: a handler or an observer panicked; Err has the stack
	KindDropped        EventKind = "dropped"          // warn: the observer is too slow and missed the events that Err counts
)

// Event is one thing that happened, for logs and metrics.
type Event struct {
	Kind    EventKind
	Handler string        // "primary" or "secondary"; empty where the event is not one store's
	Op      string        // "lock", "extend", "release" or "notify"; empty likewise
	Key     string        // the lock
	Took    time.Duration // how long the operation took; 0 where nothing was measured
	Err     error         // why; nil where nothing went wrong
}

// level is the one table of how serious a kind is.
func (k EventKind) level() slog.Level {
	switch k {
	case KindUnavailable, KindRefused, KindMirrorRefused, KindLost, KindRecordFailed, KindPanic:
		return slog.LevelError
	case KindFellBack, KindRenewFailed, KindMirrorFailed, KindMirrorShed, KindReleaseFailed, KindTakeBackFailed, KindConflict, KindDropped:
		return slog.LevelWarn
	case KindRecovered:
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// LogEvents returns an observer that writes each event as one line to logger, at the level named at its kind. What
// is normal (busy included) is at debug level. A nil logger means [slog.Default].
func LogEvents(logger *slog.Logger) func(context.Context, Event) {
	return func(ctx context.Context, e Event) {
		logger := logger
		if logger == nil {
			logger = slog.Default()
		}
		attrs := make([]slog.Attr, 0, 5)
		attrs = append(attrs, slog.String("key", e.Key))
		if e.Handler != "" {
			attrs = append(attrs, slog.String("handler", e.Handler))
		}
		if e.Op != "" {
			attrs = append(attrs, slog.String("op", e.Op))
		}
		if e.Took != 0 {
			attrs = append(attrs, slog.Duration("took", e.Took))
		}
		if e.Err != nil {
			text := e.Err.Error()
			if e.Kind != KindPanic { // whose stack is best read as it is
				text = oneLine(e.Err)
			}
			attrs = append(attrs, slog.String("err", text))
		}
		logger.LogAttrs(ctx, e.Kind.level(), "loki: "+string(e.Kind), attrs...)
	}
}

// maxPendingEvents is how far an observer may fall behind before it misses events.
const maxPendingEvents = 4096

// observer hands events to the user's function: one at a time, in order, on a goroutine of its own that ends when
// there is nothing left to tell. A call of the function in the emitter's place would let a slow log writer hold up a
// renewal, or a release.
type observer struct {
	observe func(context.Context, Event) // nil: silence

	mu      sync.Mutex // guards what follows; never held while observe runs
	pending []pendingEvent
	dropped int
	running bool
	idle    chan struct{} // closed when running becomes false
}

type pendingEvent struct {
	ctx   context.Context
	event Event
}

// emit never blocks. ctx gives the observer its values; that it has ended is of no concern to a log.
func (o *observer) emit(ctx context.Context, e Event) {
	if o.observe == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.pending) >= maxPendingEvents {
		o.dropped++
		return
	}
	o.pending = append(o.pending, pendingEvent{context.WithoutCancel(ctx), e})
	if !o.running {
		o.running, o.idle = true, make(chan struct{})
		go o.deliver()
	}
}

func (o *observer) deliver() {
	done := false
	defer func() {
		if !done { // the observer has ended its goroutine, as a failed test does: the next event has one of its own
			go o.deliver()
		}
	}()
	for {
		o.mu.Lock()
		batch, dropped := o.pending, o.dropped
		o.pending, o.dropped = nil, 0
		if len(batch) == 0 {
			o.running, done = false, true
			close(o.idle)
			o.mu.Unlock()
			return
		}
		o.mu.Unlock()
		for _, p := range batch {
			o.call(p)
		}
		if dropped > 0 {
			o.call(pendingEvent{batch[len(batch)-1].ctx, Event{Kind: KindDropped, Err: fmt.Errorf("loki: the observer missed %d events", dropped)}})
		}
	}
}

// call keeps a panicking observer from taking the process down: nobody could recover it on this goroutine. It is told
// of its own panic once; a panic over that is the end of it.
func (o *observer) call(p pendingEvent) {
	defer func() {
		if v := recover(); v != nil && p.event.Kind != KindPanic {
			err := fmt.Errorf("loki: the observer panicked on %q: %v\n%s", p.event.Kind, v, debug.Stack())
			o.call(pendingEvent{p.ctx, Event{Kind: KindPanic, Key: p.event.Key, Err: err}})
		}
	}()
	o.observe(p.ctx, p.event)
}

// flush waits until everything emitted so far has been told, or ctx ends.
func (o *observer) flush(ctx context.Context) error {
	o.mu.Lock()
	running, idle := o.running, o.idle
	o.mu.Unlock()
	if !running {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	}
}
