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

// The kinds, with the level at which [LogEvents] logs them.
//
// Two are about a store: [KindDown] and [KindUp], one of each for an outage, however many calls it fails. What such a call
// came to is at debug level: its caller got the error, or it is repeated. Above that are what a person has to see.
const (
	// KindDown is an outage of one store: a call failed, and so did one that was sent after that. Key is one that it
	// failed; of a cluster, perhaps only those of one shard fail. Error if nothing runs meanwhile: without another store,
	// with that down too, and for the secondary under [MirrorSync]. Else warn: the other store decides.
	KindDown EventKind = "down"

	// KindUp is its end: every key that failed has been answered. Took is how long it lasted, Calls how many
	// acquisitions and renewals failed or went to the other store. Info. A store that fails again within a minute is
	// reported as up when it has been so for a minute; so is one that grants other keys than those it failed to grant.
	KindUp EventKind = "up"

	// KindRefused is a permanent error, such as a wrong password or a missing permission, which no retry fixes. Error
	// when a store reports it for the first time, or again after the operation has worked; debug for further calls.
	KindRefused EventKind = "refused"

	// KindLost is a lock that ended while fn was running. Error.
	KindLost EventKind = "lost"

	// KindConflict is a key that the secondary holds for another holder than the primary. Warn.
	KindConflict EventKind = "conflict"

	// KindForgotten is a primary that no longer holds the lock of a running closure, which goes on by the secondary's
	// record: it restarted empty, or someone removed the key. Warn for the first lock, debug for others within a minute.
	KindForgotten EventKind = "forgotten"

	// KindRecordFailed is a store that did not record an occurrence that was run; it is tried again for a minute. Error.
	KindRecordFailed EventKind = "record_failed"

	// KindMirrorDropped is a mirror write for which there was no room among those that wait; it is tried again. Warn
	// for the first, debug for others within a minute.
	KindMirrorDropped EventKind = "mirror_dropped"

	// KindPanic is a panic of a handler or an observer; Err has the stack. Error.
	KindPanic EventKind = "panic"

	// KindDropped is an observer that is too slow and missed the events that Err counts. Warn.
	KindDropped EventKind = "dropped"

	// What follows is at debug level.

	KindAcquired      EventKind = "acquired"       // Handler granted the lock, fn is about to run
	KindReleased      EventKind = "released"       // Handler has released the claim, or keeps it for a minimum hold only
	KindRenewed       EventKind = "renewed"        // Handler has confirmed the lease
	KindMirrored      EventKind = "mirrored"       // the secondary has recorded the lock
	KindBusy          EventKind = "busy"           // held elsewhere, fn did not run
	KindDone          EventKind = "done"           // the occurrence has been run already, fn did not run
	KindUnavailable   EventKind = "unavailable"    // no store could decide, fn did not run
	KindRolledBack    EventKind = "rolled_back"    // a claim of unknown outcome was removed from Handler, if it was there
	KindFellBack      EventKind = "fell_back"      // the primary is unavailable and the secondary decides; of a running lease (Op is extend), its renewals do
	KindRenewFailed   EventKind = "renew_failed"   // no store confirmed the lease; tried again until its validity ends
	KindMirrorFailed  EventKind = "mirror_failed"  // the secondary did not record the lock; tried again
	KindReleaseFailed EventKind = "release_failed" // a release or a rollback failed; tried again until the claim expires
)

// Event is one thing that happened, for logs and metrics.
type Event struct {
	Kind    EventKind
	Level   slog.Level    // how serious it is: see the kinds
	Handler string        // "primary" or "secondary"; empty where the event is not one store's
	Op      string        // "lock", "extend", "release" or "notify"; empty likewise
	Key     string        // the lock; empty where the event is not one lock's
	Took    time.Duration // how long the operation, or the outage, took; 0 where nothing was measured
	Calls   int           // of KindUp, how many failed
	Err     error         // why; nil where nothing went wrong
}

// The levels of kinds that have more than one.
const (
	levelDebug = slog.LevelDebug
	levelWarn  = slog.LevelWarn
	levelError = slog.LevelError
)

// level is that of a kind whose events are all equally serious.
func (k EventKind) level() slog.Level {
	switch k {
	case KindLost, KindRecordFailed, KindPanic:
		return slog.LevelError
	case KindConflict, KindDropped:
		return slog.LevelWarn
	case KindUp:
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// LogEvents returns an observer that writes each event as one line to logger, at its level. What is normal,
// busy included, is at debug level. A nil logger means [slog.Default].
func LogEvents(logger *slog.Logger) func(context.Context, Event) {
	return func(ctx context.Context, e Event) {
		logger := logger
		if logger == nil {
			logger = slog.Default()
		}
		attrs := make([]slog.Attr, 0, 6)
		if e.Key != "" {
			attrs = append(attrs, slog.String("key", e.Key))
		}
		if e.Handler != "" {
			attrs = append(attrs, slog.String("handler", e.Handler))
		}
		if e.Op != "" {
			attrs = append(attrs, slog.String("op", e.Op))
		}
		if e.Took != 0 {
			attrs = append(attrs, slog.Duration("took", e.Took))
		}
		if e.Calls != 0 {
			attrs = append(attrs, slog.Int("calls", e.Calls))
		}
		if e.Err != nil {
			attrs = append(attrs, slog.String("err", e.text()))
		}
		logger.LogAttrs(ctx, e.Level, "loki: "+string(e.Kind), attrs...)
	}
}

// text is what Err says, without what the other fields say already.
func (e Event) text() string {
	if e.Kind == KindPanic { // whose stack is best read as it is
		return e.Err.Error()
	}
	if err, ok := e.Err.(interface{ bare() string }); ok { // the outermost: what it wraps has a text of its own
		return err.bare()
	}
	if e.Handler != "" {
		return oneLine(handlersOwn(e.Err))
	}
	return byStore(e.Err)
}

// maxPendingEvents is how far an observer may fall behind before it misses events at debug level; twice that, any.
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
	if e.Level == 0 {
		e.Level = e.Kind.level()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	limit := maxPendingEvents
	if e.Level > slog.LevelDebug { // a flood of calls must not keep the outage that caused it from being reported
		limit *= 2
	}
	if len(o.pending) >= limit {
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
			o.call(pendingEvent{batch[len(batch)-1].ctx, Event{Kind: KindDropped, Level: KindDropped.level(), Err: fmt.Errorf("loki: the observer missed %d events", dropped)}})
		}
	}
}

// call keeps a panicking observer from taking the process down: nobody could recover it on this goroutine. It is told
// of its own panic once; a panic over that is the end of it.
func (o *observer) call(p pendingEvent) {
	defer func() {
		if v := recover(); v != nil && p.event.Kind != KindPanic {
			err := fmt.Errorf("loki: the observer panicked on %q: %v\n%s", p.event.Kind, v, debug.Stack())
			o.call(pendingEvent{p.ctx, Event{Kind: KindPanic, Level: KindPanic.level(), Key: p.event.Key, Err: err}})
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
