package redlockhandler

import (
	"cmp"
	"slices"
	"time"

	"github.com/lokilock/loki"
)

// ballot is the votes of one round. A vote without a verdict is still to come.
type ballot struct{ votes []Vote }

// decision is what a ballot says.
type decision int

const (
	undecided decision = iota // a vote to come could change what it says
	won                       // a majority granted, renewed or released, or a majority holds for one token
	lost                      // a majority holds for one and the same other token, or it can no longer hold for ours
	vague                     // the former, but until when depends on votes to come
	split                     // a majority answered, and no claim has a majority
	unknown                   // those who answered are too few
	mistaken                  // so many refused that the others could not decide
)

func (b *ballot) majority() int { return len(b.votes)/2 + 1 }

// count is how many votes have the verdict; how many are missing, for "".
func (b *ballot) count(v Verdict) int {
	n := 0
	for _, vote := range b.votes {
		if vote.Verdict == v {
			n++
		}
	}
	return n
}

// rival is the other token with the most votes, the smallest of several, and how many it has.
func (b *ballot) rival() (token string, most int) {
	counts := make(map[string]int)
	for _, vote := range b.votes {
		if vote.Verdict != VerdictHeld {
			continue
		}
		counts[vote.token]++
	}
	for other, n := range counts {
		if n > most || n == most && other < token {
			token, most = other, n
		}
	}
	return token, most
}

// undone is what a ballot says that neither decides nor still can. It waits for every vote anyway: the reader of the error
// wants to know of each server.
func (b *ballot) undone() decision {
	switch {
	case b.count("") > 0:
		return undecided
	case b.count(VerdictPermanentError) > len(b.votes)-b.majority():
		return mistaken
	}
	return unknown
}

// ofLock decides about a claim that was asked for.
//
// A server that refused is not a "no" by itself: three rivals on three servers are refused twice each, and none of them has
// the lock. Nor is a majority that refused for several tokens. Those votes are split, and cast again.
func (b *ballot) ofLock() decision {
	granted, missing := b.count(VerdictGranted), b.count("")
	_, rival := b.rival()
	switch {
	case granted >= b.majority():
		return won
	case rival >= b.majority() && missing > 0 && !b.agreeOnTime():
		return vague
	case rival >= b.majority():
		return lost
	case missing > 0 && max(granted, rival)+missing >= b.majority():
		return undecided
	case granted+b.count(VerdictHeld) >= b.majority():
		return split
	}
	return b.undone()
}

// ofExtend decides about a claim that was to be renewed. A server that does not hold it says no, whatever it holds instead:
// a claim with too few servers left to be a majority is over, and nothing may make it one again.
func (b *ballot) ofExtend() decision {
	switch {
	case b.count(VerdictGranted) >= b.majority():
		return won
	case b.count(VerdictNotHeld) > len(b.votes)-b.majority():
		return lost
	}
	return b.undone()
}

// agreed decides by a majority for one verdict: of servers that do not hold a claim that was released, which then is over
// and the key free for others, or of servers that are listened to.
func (b *ballot) agreed(v Verdict) decision {
	if b.count(v) >= b.majority() {
		return won
	}
	return b.undone()
}

// ofRelease decides about a claim that was released, and whether it may have held until then. That a server had nothing to
// release is rare, and then the others are waited for a little.
func (b *ballot) ofRelease() (d decision, held bool) {
	with, without := 0, 0
	for _, vote := range b.votes {
		switch {
		case vote.Verdict == VerdictNotHeld && vote.held:
			with++
		case vote.Verdict == VerdictNotHeld:
			without++
		}
	}
	d = b.agreed(VerdictNotHeld)
	if d == won && max(with, without) < b.majority() && b.count("") > 0 {
		d = vague
	}
	return d, without < b.majority()
}

// ofInspect decides whether the key is held, and until when: it waits for every vote.
func (b *ballot) ofInspect() decision {
	_, rival := b.rival()
	silent := b.count(VerdictUnreachable) + b.count(VerdictPermanentError)
	switch {
	case b.count("") > 0:
		return undecided
	case rival >= b.majority():
		return won
	case rival+silent < b.majority():
		return lost
	}
	return b.undone()
}

// timesAgree is how far apart servers' times may be that were set by one request.
const timesAgree = 25 * time.Millisecond

// holder is who holds the key by a majority of the servers, and for how long it will be one, if that is known. It holds
// since the first of them granted it: others may have been given it later.
func (b *ballot) holder() loki.Holder {
	first, _ := b.bounds()
	token, _ := b.rival()
	for _, vote := range b.votes {
		if vote.Verdict == VerdictHeld && vote.token == token && vote.HeldBy.Since.Before(first.Since) {
			first.Since = vote.HeldBy.Since
		}
	}
	if !b.agreeOnTime() {
		first.Left, first.Until = 0, time.Time{}
	}
	return first
}

// agreeOnTime reports whether the votes for who holds tell until when. One may tell of the claim as it was before a
// renewal that is still on its way to that server, and nothing in it shows which of two is the newer.
func (b *ballot) agreeOnTime() bool {
	first, last := b.bounds()
	return knownLeft(last)-knownLeft(first) <= timesAgree
}

// bounds are the earliest and the latest end that the majority for one token can have: when the last of those who voted
// for it but a minority has forgotten, if the servers whose votes are missing do not hold for it, and if they all do and
// for longer.
func (b *ballot) bounds() (first, last loki.Holder) {
	token, count := b.rival()
	var holders []loki.Holder
	for _, vote := range b.votes {
		if vote.Verdict == VerdictHeld && vote.token == token {
			holders = append(holders, vote.HeldBy)
		}
	}
	slices.SortFunc(holders, func(a, b loki.Holder) int { return cmp.Compare(knownLeft(a), knownLeft(b)) })
	silent := b.count("") + b.count(VerdictUnreachable) + b.count(VerdictPermanentError)
	return holders[count-b.majority()], holders[min(count+silent-b.majority(), count-1)]
}

// knownLeft sorts what is not known behind everything else: it has no end that a caller could wait for.
func knownLeft(h loki.Holder) time.Duration {
	if h.Left == 0 {
		return 1<<63 - 1
	}
	return h.Left
}

// released is the token that was released last, if the servers that granted are at one about it. One that missed a
// release remembers the one before; nothing but their clocks would tell which of the two was the last, and not to know
// costs no more than the time that a record of it has left in another store.
func (b *ballot) released() string {
	token := ""
	for _, vote := range b.votes {
		switch {
		case vote.Verdict != VerdictGranted, vote.released == "", vote.released == token:
		case token != "":
			return ""
		default:
			token = vote.released
		}
	}
	return token
}
