package redlockhandler

import (
	"fmt"
	"strings"

	"github.com/lokilock/loki"
)

// Verdict is what one server of a quorum made of a request, in words.
type Verdict string

const (
	// VerdictGranted says that the server holds the key for the claim that was asked for.
	VerdictGranted Verdict = "granted"

	// VerdictHeld says that the server holds the key for another token; [Vote.HeldBy] has its holder.
	VerdictHeld Verdict = "held by another"

	// VerdictNotHeld says that the server does not hold the key for the claim, as after a release, or for any other.
	VerdictNotHeld Verdict = "not held"

	// VerdictUnreachable says that the server did not answer in time, or could not; [Vote.Err] says why. What was asked
	// of it may have happened.
	VerdictUnreachable Verdict = "unreachable"

	// VerdictPermanentError says that the server or its client refused for a reason that trying again will not fix, such as a
	// missing permission; [Vote.Err] says which.
	VerdictPermanentError Verdict = "permanent error"
)

// Vote is what one server of a quorum said.
type Vote struct {
	Server  string      // its number in the order of New, from 1, and its address where the client tells it
	Verdict Verdict     // what it made of the request
	HeldBy  loki.Holder // who holds, with VerdictHeld, as far as the server knows
	Err     error       // with VerdictUnreachable and VerdictPermanentError

	token    string // whose HeldBy is
	released string // the token last released there, with VerdictGranted
	fence    int64  // that of this grant, likewise: the server's own, which means nothing to another
	votes    bool   // it answers a request that could record the claim, with VerdictGranted
	held     bool   // of a release: the claim held until then, or may have
	late     bool   // another request of the same call is on its way
}

// String is the vote as [Error] prints it.
func (v Vote) String() string {
	s := v.Server + ": " + string(v.Verdict)
	if v.HeldBy.ID != "" {
		s += fmt.Sprintf(" (%q)", v.HeldBy.ID)
	}
	if v.Err != nil {
		s += ": " + v.Err.Error()
	}
	return s
}

// failure is the vote of a server that said neither yes nor no.
func failure(err error) Vote {
	if loki.IsUnavailable(err) {
		return Vote{Verdict: VerdictUnreachable, Err: err}
	}
	return Vote{Verdict: VerdictPermanentError, Err: err}
}

// failure is the error of a ballot that brought no decision.
func (b *ballot) failure(op, key string, d decision) error {
	for i := range b.votes {
		if v := &b.votes[i]; v.Verdict == "" {
			v.Verdict, v.Err = VerdictUnreachable, errNotAwaited
		}
	}
	e := &Error{Op: op, Key: key, Votes: b.votes, mistake: d == mistaken}
	if d == mistaken {
		return e
	}
	return loki.Unavailable(e)
}

// Error is the error of a [Handler] whose servers brought no decision about, with what each of them said. errors.As
// finds it in whatever the Locker returns or reports.
//
// It is [loki.Unavailable] if the servers that did not answer might have decided. It is permanent, and the permanent errors of
// its servers are found through it, if so many of them refused that no answer of the others could have decided. Votes that
// stay split between claims are no error, see [Handler.Grant].
type Error struct {
	Op    string // "lock", "extend", "release", "inspect" or "notify"
	Key   string // the key of the claim
	Votes []Vote // one for each server, in the order of New

	mistake bool
}

func (e *Error) Error() string {
	votes := make([]string, len(e.Votes))
	for i, v := range e.Votes {
		votes[i] = v.String()
	}
	return fmt.Sprintf("redlockhandler: no majority for the %s of %q: %s", e.Op, e.Key, strings.Join(votes, "; "))
}

// Unwrap returns the servers' own errors. Those of an outage are not among them if the whole is a mistake: it must not
// be taken for an outage because of one server that is down besides.
func (e *Error) Unwrap() []error {
	var errs []error
	for _, v := range e.Votes {
		if v.Err != nil && (!e.mistake || v.Verdict == VerdictPermanentError) {
			errs = append(errs, v.Err)
		}
	}
	return errs
}
