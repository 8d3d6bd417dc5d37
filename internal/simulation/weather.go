package simulation

import (
	"math/rand/v2"
	"net"
	"syscall"
	"time"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
)

// errDown is what a client gets from a server that is not there.
var errDown = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}

const (
	// latency is how long a request takes each way on a link that is fine, at most.
	latency = 400 * time.Microsecond

	// latest is how late a request may reach a store whose client has given it up.
	latest = 1500 * time.Millisecond

	fine = "fine"

	hole = "black hole"

	// late is a link on which what was given up lands all the same.
	late = "late"

	// haunted is a link on which a request can fail and land all the same, when its connection has long gone.
	haunted = "haunted"

	// dead is a link whose connections have died in silence: a first attempt is swallowed, or lands late, and a second one
	// gets through over a new connection.
	dead = "dead connections"

	// crawling is a link to a store that is slow: a request takes up to nine tenths of the time that it is given by default.
	crawling = "crawling"

	// cold is a link whose connections are slow at first: the first request of each takes longer than the store is given by
	// default, the others are fast, and a request that is cancelled costs its connection.
	cold = "cold connections"
)

// timeouts are the times that the stores are given by default.
var timeouts = [...]time.Duration{primary: loki.DefaultPrimaryTimeout, secondary: loki.DefaultSecondaryTimeout}

// firstRequest is how long the first request of a connection takes on a link that is cold.
func firstRequest(at int) time.Duration { return timeouts[at] * 5 / 4 }

// weathers are the states that a link can be in, each by the fault that one call meets with.
var weathers = []struct {
	name  string
	fault func(r *rand.Rand) lokitest.Fault
}{
	{fine, clear},
	{haunted, clear}, // and see wire.haunts
	{dead, func(r *rand.Rand) lokitest.Fault { // the first attempt; the second one has a connection of its own
		if r.IntN(2) == 0 {
			return lokitest.Fault{Before: lokitest.Pause{For: time.Hour}}
		}
		return lokitest.Fault{Before: lokitest.Pause{For: upTo(r, latest), IgnoreCtx: true}}
	}},
	{"cut", func(r *rand.Rand) lokitest.Fault {
		f := clear(r)
		f.Err = errDown
		return f
	}},
	{hole, func(*rand.Rand) lokitest.Fault {
		return lokitest.Fault{Before: lokitest.Pause{For: time.Hour}}
	}},
	{"loses replies", func(r *rand.Rand) lokitest.Fault {
		f := clear(r)
		f.Err, f.LostReply = errDown, r.IntN(2) == 0
		return f
	}},
	{late, func(r *rand.Rand) lokitest.Fault { // what was given up lands all the same
		return lokitest.Fault{Before: lokitest.Pause{For: upTo(r, latest), IgnoreCtx: true}}
	}},
	{"slow", func(r *rand.Rand) lokitest.Fault {
		return lokitest.Fault{Before: lokitest.Pause{For: upTo(r, 100*time.Millisecond)}, After: lokitest.Pause{For: upTo(r, 100*time.Millisecond)}}
	}},
	{"late replies", func(r *rand.Rand) lokitest.Fault {
		f := clear(r)
		f.After = lokitest.Pause{For: upTo(r, latest), IgnoreCtx: true}
		return f
	}},
	{"flaky", func(r *rand.Rand) lokitest.Fault {
		f := clear(r)
		if r.IntN(3) == 0 {
			f.Err, f.LostReply = errDown, r.IntN(2) == 0
		}
		return f
	}},
	{crawling, clear}, // and see wire.set
	{cold, clear},     // and see wire.connect
}

// slow is how many of the weathers, at the end, are those of slow stores. A schedule has them or not: see Schedule.vary.
const slow = 2

// clear is a call that goes well. It takes time, and its own time, so that what happens has an order.
func clear(r *rand.Rand) lokitest.Fault {
	return lokitest.Fault{Before: lokitest.Pause{For: upTo(r, latency)}, After: lokitest.Pause{For: upTo(r, latency)}}
}

// crawls is a call of a store that is slow, given the time that it has.
func crawls(r *rand.Rand, timeout time.Duration) lokitest.Fault {
	slowly := func() lokitest.Pause { return lokitest.Pause{For: timeout/20 + upTo(r, timeout*4/10)} }
	return lokitest.Fault{Before: slowly(), After: slowly()}
}

func upTo(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) + 1 }

// weather finds one by its name. What it returns makes the fault of a first or a second attempt.
func weather(name string) func(r *rand.Rand, second bool) lokitest.Fault {
	for _, w := range weathers {
		if w.name == name {
			return func(r *rand.Rand, second bool) lokitest.Fault {
				if second && name == dead {
					return clear(r)
				}
				return w.fault(r)
			}
		}
	}
	panic("simulation: there is no weather " + name)
}
