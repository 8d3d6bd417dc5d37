package loki

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/lokilock/loki/internal/eventqueue"
)

// EventKind says what happened. The values are stable strings, fit for a metric's label.
type EventKind string

// The kinds, with the level at which [LogEvents] logs them.
//
// Two are about a store: [KindDown] and [KindUp], one of each for an outage, however many calls it fails. What such a call
// came to is at debug level: its caller got the error, or it is repeated. Above that are what a person has to see.
const (
	// KindDown is an outage of one store: a call failed, and so did one that was sent after that. At [Locker.Close] one failure
	// is enough, if no later answer contradicts it. Key is one that the store failed; of a cluster, perhaps only those of one
	// shard fail. Error if nothing runs meanwhile: without another store,
	// with that down too, and for the secondary under [MirrorSync]. Else warn: the other store decides.
	KindDown EventKind = "down"

	// KindUp is its end: every key that failed has been answered. Took is how long it lasted, Calls how many
	// acquisitions and renewals failed or went to the other store. Info. If the outage began within a minute of the end of
	// the one before, its own end is reported only when no call has failed for a minute.
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

	// KindRecordFailed is a store that did not record an occurrence that was run; it is tried again until the record's time is over. Error.
	KindRecordFailed EventKind = "record_failed"

	// KindMirrorLate is a mirror write that had to wait for longer than a quarter of a second, because too many others were
	// waiting for the secondary. While first writes wait for as long, new locks are acquired in both stores, one after the
	// other. Warn for the first, debug for others within a minute.
	KindMirrorLate EventKind = "mirror_late"

	// KindPanic is a panic of a handler or an observer; Err has the stack. Error.
	KindPanic EventKind = "panic"

	// KindDropped is an observer that is too slow and missed the events that Err counts. Warn.
	KindDropped EventKind = "dropped"

	// What follows is at debug level.

	KindAcquired      EventKind = "acquired"       // Store granted the lock, fn is about to run
	KindReleased      EventKind = "released"       // Store has released the claim, or keeps it for a minimum hold only
	KindRenewed       EventKind = "renewed"        // Store has confirmed the lease
	KindMirrored      EventKind = "mirrored"       // the secondary has recorded the lock
	KindBusy          EventKind = "busy"           // held elsewhere, fn did not run
	KindDone          EventKind = "done"           // the occurrence has been run already, fn did not run
	KindUnavailable   EventKind = "unavailable"    // no store could decide, fn did not run
	KindRolledBack    EventKind = "rolled_back"    // a claim of unknown outcome was removed from Store, if it was there
	KindFellBack      EventKind = "fell_back"      // the secondary decides, because the primary is unavailable or, of a running lease (Op is extend), has failed a renewal in any way
	KindRenewFailed   EventKind = "renew_failed"   // no store confirmed the lease; tried again until its validity ends
	KindMirrorFailed  EventKind = "mirror_failed"  // the secondary did not record the lock, or refused it; tried again
	KindReleaseFailed EventKind = "release_failed" // a release or a rollback failed; tried again until the claim expires, unless Err says that too many are
)

// Event is one thing that happened, for logs and metrics.
type Event struct {
	Kind  EventKind
	Level slog.Level    // how serious it is: see the kinds
	Store Store         // empty where the event is not one store's
	Op    Op            // empty likewise
	Key   string        // the lock; empty where the event is not one lock's
	Took  time.Duration // how long the operation, or the outage, took; 0 where nothing was measured
	Calls int           // of KindUp, how many failed
	Err   error         // why; nil where nothing went wrong
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
		if e.Store != "" {
			attrs = append(attrs, slog.String("store", string(e.Store)))
		}
		if e.Op != "" {
			attrs = append(attrs, slog.String("op", string(e.Op)))
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
	if e.Store != "" {
		return oneLine(handlersOwn(e.Err))
	}
	return byStore(e.Err)
}

// The room for events that wait for a slow observer. A flood of events of single calls must not keep the outage that caused
// it from being reported: those above debug level have as much room again.
const maxPendingEvents = 4096

// events hands events to the user's function in order, on a goroutine of its own. To call it in the emitter's place would
// let a slow log writer hold up a renewal, or a release.
type events struct {
	observe func(context.Context, Event) // nil: silence
	queue   *eventqueue.Queue[pendingEvent]
}

func newEvents(observe func(context.Context, Event)) *events {
	return &events{observe: observe, queue: &eventqueue.Queue[pendingEvent]{
		Handle: func(p pendingEvent) { observe(p.ctx, p.event) },
		Limit:  maxPendingEvents,
		Dropped: func(last pendingEvent, n int) pendingEvent {
			return pendingEvent{last.ctx, Event{Kind: KindDropped, Level: KindDropped.level(), Err: fmt.Errorf("loki: the observer missed %d events", n)}}
		},
		Panicked: func(p pendingEvent, reason any, stack []byte) pendingEvent {
			err := fmt.Errorf("loki: the observer panicked on %q: %v\n%s", p.event.Kind, reason, stack)
			return pendingEvent{p.ctx, Event{Kind: KindPanic, Level: KindPanic.level(), Key: p.event.Key, Err: err}}
		},
	}}
}

type pendingEvent struct {
	ctx   context.Context
	event Event
}

// emit never blocks. ctx gives the observer its values; that it has ended is of no concern to a log.
func (o *events) emit(ctx context.Context, e Event) {
	if o.observe == nil {
		return
	}
	if e.Level == 0 {
		e.Level = e.Kind.level()
	}
	o.queue.Add(pendingEvent{context.WithoutCancel(ctx), e}, e.Level > slog.LevelDebug)
}

// flush waits until every event so far has been delivered, or ctx ends.
func (o *events) flush(ctx context.Context) error {
	if o.queue.Flush(ctx) != nil {
		return ended(ctx)
	}
	return nil
}
