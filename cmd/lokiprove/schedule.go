package main

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lokilock/loki/cmd/lokiprove/referee"
)

// fault is one thing that goes wrong.
type fault struct {
	id      int
	kind    string
	worker  int    // 0: all of them
	store   string // whose server or the way to which; empty: a process, or the server of a primary that has but one
	at, end time.Duration
	delay   time.Duration // of a slow link
}

// kind is something that can go wrong, how often in comparison, and for how many expiries.
type kind struct {
	kind           string
	weight         int
	lossy          bool
	pair, quorum   bool // only with a primary of that sort
	everybody      bool // meets all workers at once
	link           bool // meets the way to a store
	least, longest float64
}

var kinds = []kind{
	{kind: referee.Kill, weight: 3, least: 0.05, longest: 0.7},
	{kind: referee.Stop, weight: 4, least: 0.1, longest: 2},
	{kind: referee.Cut, weight: 3, link: true, least: 0.2, longest: 3},
	{kind: referee.Hole, weight: 3, link: true, least: 0.2, longest: 3},
	{kind: referee.Slow, weight: 2, link: true, least: 0.3, longest: 2},
	{kind: referee.LostReply, weight: 2, link: true, least: 0.5, longest: 0.5},
	{kind: referee.Disconnect, weight: 1, link: true},
	{kind: referee.Forget, weight: 3, link: true},
	{kind: referee.Full, weight: 3, link: true, least: 0.3, longest: 2},
	{kind: referee.Cut, weight: 1, link: true, everybody: true, least: 0.2, longest: 2},
	{kind: referee.Hole, weight: 1, link: true, everybody: true, least: 0.2, longest: 2},
	{kind: referee.Slow, weight: 1, link: true, everybody: true, least: 0.3, longest: 2},
	{kind: referee.Forget, weight: 1, link: true, everybody: true},
	{kind: referee.Freeze, weight: 2, everybody: true, least: 0.1, longest: 2},
	{kind: referee.Crash, weight: 3, quorum: true, everybody: true, least: 0, longest: 1},
	{kind: referee.Restart, weight: 3, quorum: true, lossy: true, everybody: true, least: 0, longest: 1}, // more than away
	{kind: referee.Restart, weight: 3, pair: true, lossy: true, everybody: true, least: 0, longest: 1},
	{kind: referee.Promote, weight: 3, pair: true, lossy: true, everybody: true, least: 0.1, longest: 1},
}

// maxDelay is of a slow link's answers: some arrive before they are given up, some after.
const maxDelay = 400 * time.Millisecond

// maxChoices is how often another fault is chosen in place of one that clashes with one there is.
const maxChoices = 4

// schedule is every fault of a proof, chosen by the seed alone. What meets the same process, link or server does so one
// after the other, and of a quorum a minority of the servers is met at a time. Now and then all faults end and there is a
// calm, so that promises which hold "while everybody reaches the secondary" are put to the test too.
func schedule(s settings) []fault {
	r := rand.New(rand.NewPCG(s.seed, 0))
	last := s.length - tail*s.expiry
	var faults []fault
	for now := s.expiry / 2; s.rate > 0; {
		now += min(time.Duration(r.ExpFloat64()/s.rate*float64(time.Second)), 10*time.Second)
		if now >= last {
			break
		}
		if r.IntN(12) == 0 {
			calm := now
			for i, f := range faults {
				faults[i].end = min(f.end, max(now, f.at+s.least(f)))
				calm = max(calm, faults[i].end)
			}
			now = calm + s.expiries(r, 1, 4)
			continue
		}
		for range maxChoices {
			f := s.choose(r)
			f.at, f.end = now, min(now+f.end, last)
			if f.end >= f.at+s.least(f) && s.fits(f, faults) {
				f.id = len(faults) + 1
				faults = append(faults, f)
				break
			}
		}
	}
	return faults
}

// least is how long a fault has to last: a server of a quorum that comes back empty is away until all that it had promised
// is over.
func (s settings) least(f fault) time.Duration {
	if s.quorum > 0 && f.kind == referee.Restart {
		return s.away()
	}
	return 0
}

// fits reports whether a fault can begin while others last. None of them begins later than it does.
func (s settings) fits(f fault, faults []fault) bool {
	met := 0 // servers
	for _, other := range faults {
		if other.end < f.at {
			continue
		}
		if other.clashes(f) {
			return false
		}
		if referee.MeetsServer(other.kind) {
			met++
		}
	}
	return s.quorum == 0 || !referee.MeetsServer(f.kind) || met < s.minority()
}

// minority is how many servers of the quorum it can do without.
func (s settings) minority() int { return (s.quorum - 1) / 2 }

// possible reports whether a kind of fault is one of these proofs'.
func (s settings) possible(k kind) bool {
	return (len(s.kinds) == 0 || slices.Contains(s.kinds, k.kind)) &&
		(s.lossy || !k.lossy) && (s.quorum == 0 || !k.pair) && (s.quorum > 0 || !k.quorum)
}

// choose makes a fault whose end is how long it lasts.
func (s settings) choose(r *rand.Rand) fault {
	total := 0
	for _, k := range kinds {
		if s.possible(k) {
			total += k.weight
		}
	}
	n := r.IntN(total)
	for _, k := range kinds {
		if !s.possible(k) {
			continue
		}
		if n -= k.weight; n >= 0 {
			continue
		}
		f := fault{kind: k.kind, end: s.expiries(r, k.least, k.longest)}
		if !k.everybody {
			f.worker = 1 + r.IntN(s.workers)
		}
		switch {
		case k.link && s.mode != referee.Alone && r.IntN(2) == 0 && (s.mssql == "" || k.kind != referee.Full): // database/sql has no limit by default
			f.store = referee.Secondary
		case s.quorum > 0 && (k.link || referee.MeetsServer(k.kind)):
			f.store = referee.Server(1 + r.IntN(s.quorum))
		case k.link:
			f.store = referee.Primary
		}
		if k.kind == referee.Slow {
			f.delay = time.Duration(r.Int64N(int64(maxDelay)))
		}
		f.end += s.least(f)
		return f
	}
	panic("the weights do not add up")
}

// expiries is a random number of expiries.
func (s settings) expiries(r *rand.Rand, least, longest float64) time.Duration {
	return time.Duration((least + r.Float64()*(longest-least)) * float64(s.expiry))
}

// clashes reports whether two faults meet the same process, link or server.
func (f fault) clashes(g fault) bool {
	switch {
	case f.store != g.store, referee.MeetsServer(f.kind) != referee.MeetsServer(g.kind):
		return false
	case referee.MeetsServer(f.kind):
		return true
	case f.store != "": // links
		return f.worker == 0 || g.worker == 0 || f.worker == g.worker
	}
	return f.worker == g.worker // a process
}
