package loki

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"
)

var (
	// ErrBusy means that the lock is held elsewhere and fn did not run. It is a normal answer, not a failure; see
	// [IgnoreBusy]. The error that matches it is often a [*BusyError].
	ErrBusy = errors.New("loki: the lock is held elsewhere")

	// ErrDone means that the occurrence named by [WithOccurrence] has been run already, and fn did not run. It is a kind
	// of [ErrBusy], and matches that too.
	ErrDone = errors.New("loki: this occurrence has been run already")

	// ErrUnavailable means that no store could decide, or that one whose agreement is needed was unavailable, and fn did
	// not run. The text says which store, and why it was needed.
	ErrUnavailable = errors.New("loki: no store available")

	// ErrLockLost means that fn ran and the lock ended before fn did. One of [ErrExpired], [ErrNotHeld] and
	// [ErrConflict] matches too.
	ErrLockLost = errors.New("loki: the lock was lost")

	// ErrExpired is a reason for [ErrLockLost]: the validity of the lease ended before it was
	// renewed. The last error of a store, if any, is joined.
	ErrExpired = errors.New("loki: the lease expired")

	// ErrNotHeld is a reason for [ErrLockLost]: the store said that the claim no longer holds.
	ErrNotHeld = errors.New("loki: the store no longer holds the claim")

	// ErrConflict is a reason for [ErrLockLost]: the secondary reports another holder, and went on doing so for longer than
	// a release on its way would take. The primary has most likely forgotten or missed that holder.
	ErrConflict = errors.New("loki: the stores report different holders")

	// ErrClosed means that the Locker has been closed and fn did not run. It is also the cause with which Close ends a lease
	// from [Locker.Acquire].
	ErrClosed = errors.New("loki: the Locker is closed")
)

// IgnoreBusy returns nil if err matches [ErrBusy], else err: what a worker writes that is content to be skipped.
//
// A fn that returns a nested call's ErrBusy is ignored as well; [Outcome.Ran] tells the two apart.
func IgnoreBusy(err error) error {
	if errors.Is(err, ErrBusy) {
		return nil
	}
	return err
}

// HandlerError is an error of one store, with what was asked of it. errors.As finds it, and the store's own error
// through it, in whatever the Locker returns or reports.
type HandlerError struct {
	Store Store  // which one
	Op    Op     // what it was asked to do
	Key   string // the key of the claim
	Err   error  // what the handler returned
}

func (e *HandlerError) Error() string {
	return fmt.Sprintf("%s: %s of %s: %s", e.Store, e.Op, quoted(e.Key), oneLine(e.Err))
}

func (e *HandlerError) Unwrap() error { return e.Err }

// BusyError is the [ErrBusy] of one key: errors.As finds it where the Locker, or a store, could say more.
type BusyError struct {
	Key string

	// Holder is who holds the lock, as the store that refused reported it in the same answer; its ID is empty where the
	// store did not. The ID is as it stands in the store, where anybody may have written it: the error's text quotes it
	// and cuts it to 200 characters.
	Holder Holder

	// Nested says that the caller holds this lock itself: the call was made with the ctx of a closure, or of a
	// lease, that holds it.
	Nested bool

	// err is why a wait ended, or what made a granted claim be given back; nil otherwise.
	err error

	// poll says that the primary notifies no waiter when the lock is free: its holder is in the secondary, or several
	// instances contend for it.
	poll bool
}

var errContended = errors.New("several instances contend for it, and none of them has acquired it yet")

// busyBy returns the error of a call that a store has refused.
func busyBy(key string, g Grant) *BusyError {
	e := &BusyError{Key: key, Holder: g.HeldBy}
	if g.Contended {
		e.err, e.poll = errContended, true
	}
	return e
}

func (e *BusyError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "loki: lock %s is busy", quoted(e.Key))
	if e.Nested {
		b.WriteString(": this is a nested call, the lock is held by the closure that makes it")
	} else {
		b.WriteString(e.Holder.text())
	}
	if e.err != nil {
		fmt.Fprintf(&b, " (%s)", oneLine(e.err))
	}
	return b.String()
}

// text returns what is known of a holder. The remaining time is what tells a holder that is alive, and renews, from one
// that has crashed.
func (h Holder) text() string {
	var b strings.Builder
	if h.ID != "" {
		b.WriteString(": held by " + quoted(h.ID))
		if h.Since.Unix() > 0 { // a record without the time of its grant reads as 1970
			b.WriteString(" since " + h.Since.UTC().Format("2006-01-02T15:04:05.000Z"))
		}
	}
	if h.Left > 0 {
		left := h.Left.Round(time.Millisecond)
		if left > 10*time.Second {
			left = left.Round(time.Second)
		}
		fmt.Fprintf(&b, ", expires in %v unless it is renewed", left)
	}
	return b.String()
}

// Is matches [ErrBusy].
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

func (e *BusyError) Unwrap() error { return e.err }

// doneError is the ErrDone of one occurrence.
type doneError struct {
	key    string
	holder Holder // who ran it, if the store told
}

func (e *doneError) Error() string {
	s := fmt.Sprintf("loki: occurrence %s has been run already", quoted(e.key))
	if e.holder.ID != "" {
		s += " by " + quoted(e.holder.ID)
	}
	return s
}

func (e *doneError) Is(target error) bool { return target == ErrDone || target == ErrBusy }

// lostError is the cause of a lost lease's context and what the caller gets for it.
type lostError struct {
	key    string
	reason error // ErrExpired, ErrNotHeld or ErrConflict
	err    error // what a store said last; may be nil
}

func (e *lostError) Error() string {
	return fmt.Sprintf("loki: lock %s lost while it was in use: %s", quoted(e.key), e.bare())
}

// bare is the text without the key.
func (e *lostError) bare() string {
	s := strings.TrimPrefix(e.reason.Error(), "loki: ")
	if e.err != nil {
		s += ": " + byStore(e.err)
	}
	return s
}

func (e *lostError) Is(target error) bool { return target == ErrLockLost || target == e.reason }

func (e *lostError) Unwrap() error { return e.err }

// withFnError is what a call returns whose lock was lost: both errors, and not the same one twice.
func (e *lostError) withFnError(fnErr error) error {
	switch {
	case fnErr == nil:
		return e
	case errors.Is(fnErr, e): // fn returned context.Cause(ctx), perhaps wrapped
		return fnErr
	}
	return errors.Join(e, fnErr)
}

// notAcquiredError is the answer when the stores did not decide: because one was unavailable, or refused with a permanent
// error. It matches ErrUnavailable at the top only: the mark that [Unavailable] leaves inside does not, so that an outage of
// one store joined to a permanent error of the other stays a permanent error.
type notAcquiredError struct {
	key         string
	why         string // which store could not do what, and why that was needed
	errs        error  // one *HandlerError for each store, joined
	unavailable bool
}

func (e *notAcquiredError) Error() string {
	return fmt.Sprintf("loki: lock %s not acquired: %s", quoted(e.key), e.bare())
}

// bare is the text without the key.
func (e *notAcquiredError) bare() string { return e.why + ": " + byStore(e.errs) }

func (e *notAcquiredError) Is(target error) bool { return target == ErrUnavailable && e.unavailable }

func (e *notAcquiredError) Unwrap() error { return e.errs }

const noStore = "no store available"

// byStore returns the text of errs with each store's error after the store's name, and without the key, which the text
// around it has.
func byStore(err error) string {
	var parts []string
	switch e := err.(type) { //nolint:errorlint // this walks the tree itself
	case *HandlerError:
		return string(e.Store) + ": " + oneLine(e.Err)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			parts = append(parts, byStore(err))
		}
		return strings.Join(parts, "; ")
	}
	return oneLine(err)
}

// handlersOwn is a store's error without the Locker's words around it, which would be said twice.
func handlersOwn(err error) error {
	if wrapped, ok := errors.AsType[*HandlerError](err); ok {
		return wrapped.Err
	}
	return err
}

// cutShortError marks the silence of a store that the caller's deadline or expiry left hardly any time. It is an outage to
// that caller alone, neither to the circuit breaker nor to other waiters.
type cutShortError struct{ err error }

func (e *cutShortError) Error() string {
	return fmt.Sprintf("%v (the expiry, or the context's deadline, left no more time)", e.err)
}

func (e *cutShortError) Unwrap() error { return e.err }

func isCutShort(err error) bool {
	_, ok := errors.AsType[*cutShortError](err)
	return ok
}

// newEndedError returns the error of a call whose ctx ended before the lock was acquired.
func newEndedError(ctx context.Context, key string) error {
	return &endedError{key: key, err: ended(ctx)}
}

type endedError struct {
	key string
	err error
}

func (e *endedError) Error() string {
	return fmt.Sprintf("loki: lock %s not acquired: the context ended first: %s", quoted(e.key), oneLine(e.err))
}

func (e *endedError) Unwrap() error { return e.err }

// ended is why ctx did, as something that matches both its Err and its Cause.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == err { //nolint:errorlint // identity: context.Cause returns Err itself where there is no other cause
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// markedUnavailable is how Unavailable marks an error. It adds no words of its own.
type markedUnavailable struct{ error }

func (m markedUnavailable) Unwrap() error { return m.error }

// Unavailable marks a handler's error as "the store cannot be reached, or cannot answer now": refused, reset, timed
// out, read-only, out of memory, failing over. Such errors, and only such, let the secondary decide an acquisition.
// The error's text stays as it is. Unavailable(nil) is nil.
func Unavailable(err error) error {
	if err == nil {
		return nil
	}
	return markedUnavailable{err}
}

// markedNotSent is how NotSent marks an error. It adds no words of its own.
type markedNotSent struct{ error }

func (m markedNotSent) Unwrap() error { return m.error }

// NotSent marks a handler's error of a request that never left the process: no connection could be made, or none was free in
// time. The request cannot have recorded, renewed or released anything, and will not do so later, so the Locker rolls nothing
// back for it. The mark implies [Unavailable].
//
// Only a handler that is certain marks an error: a request that may have been written to a connection, even in part, is
// unknown. The error's text stays as it is. NotSent(nil) is nil.
func NotSent(err error) error {
	if err == nil {
		return nil
	}
	return markedNotSent{Unavailable(err)}
}

// isNotSent does not look into joined errors: a handler of several servers may have sent to one what it has not sent to another.
func isNotSent(err error) bool {
	for {
		if _, marked := err.(markedNotSent); marked { //nolint:errorlint // see above
			return true
		}
		wrapped, ok := err.(interface{ Unwrap() error })
		if !ok {
			return false
		}
		err = wrapped.Unwrap()
	}
}

// IsUnavailable reports whether the Locker takes a handler's error for an outage of its store rather than for a permanent
// error: an error marked with [Unavailable], or a plain network error (any [net.Error], io.EOF, io.ErrUnexpectedEOF,
// [net.ErrClosed], or a deadline).
//
// Some are a net.Error and yet permanent: a TLS alert, which refuses a certificate or a version and will refuse it again; a
// certificate that is not trusted; an address or a network that cannot be; and a file that is missing or may not be opened.
func IsUnavailable(err error) bool {
	if _, marked := errors.AsType[markedUnavailable](err); marked {
		return true
	}
	op, dialled := errors.AsType[*net.OpError](err)
	if dialled && op.Op == "remote error" { // crypto/tls does not export alerts
		return op.Err.Error() == "tls: internal error" // a proxy without a server behind it
	}
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	_, address := errors.AsType[*net.AddrError](err)
	_, protocol := errors.AsType[net.UnknownNetworkError](err)
	file := !dialled && (errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist)) // a server's socket may be missing for a while
	if untrusted || address || protocol || file || errors.Is(err, syscall.EACCES) {
		return false
	}
	_, network := errors.AsType[net.Error](err) // context.DeadlineExceeded is one
	return network || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// What a store or a caller made may be of any length and may steer a terminal, or forge a line of a log. So every text that
// people read quotes names, escapes what does not print, and cuts both.
const (
	maxNameText  = 200  // characters of a key, of a holder, of an occurrence
	maxErrorText = 1000 // characters of an error, whose last words are often the advice
)

// quoted returns s between quotes.
func quoted(s string) string {
	start, cut := cutAfter(s, maxNameText)
	if cut == "" {
		return strconv.Quote(s)
	}
	return strconv.Quote(start) + cut
}

// oneLine returns err's text as one line: joined errors stand on lines of their own.
func oneLine(err error) string {
	s, cut := cutAfter(strings.TrimSpace(err.Error()), maxErrorText)
	if !strings.ContainsFunc(s, unprintable) {
		return s + cut
	}
	var b strings.Builder
	for _, r := range strings.ReplaceAll(s, "\n", "; ") {
		if unprintable(r) {
			escaped := strconv.QuoteRune(r)
			b.WriteString(escaped[1 : len(escaped)-1])
		} else {
			b.WriteRune(r)
		}
	}
	return b.String() + cut
}

// unprintable includes what a byte that is no UTF-8 is read as.
func unprintable(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) || invisible(r) }

// cutAfter returns the first n characters of s, and what to say of the rest: nothing if there is none.
func cutAfter(s string, n int) (start, rest string) {
	for i := range s {
		if n--; n < 0 {
			return s[:i], fmt.Sprintf("... (%d bytes)", len(s))
		}
	}
	return s, ""
}

// invisible reports whether r leaves no mark of its own, so that two keys which differ in it look the same: control and
// format characters (zero width, byte order mark, bidirectional control), line and paragraph separators, variation
// selectors and fillers. Characters for private use and those that are not assigned yet are shown as a box at least, and
// which those are depends on the version of Unicode: they are not refused.
func invisible(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point)
}
