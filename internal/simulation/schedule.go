package simulation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Mode is how the stores are combined.
type Mode string

// The modes.
const (
	Alone Mode = "alone" // a primary that keeps what it knows, and no secondary
	Async Mode = "async"
	Sync  Mode = "sync"
)

// Schedule is a story: who calls when, and what happens meanwhile. It is data, so that it can be printed and shortened.
type Schedule struct {
	Seed   uint64
	Mode   Mode
	Expiry time.Duration // of every lock
	Stores [2]Traits     // of the primary and the secondary
	Plans  [][]Call      // one call after the other: plan i is of instance i%instances, on resource i/instances
	Events []Event       // in the order of time
	Ends   string        // the weather in which the instances contend when all is over
}

// Traits are what a store is like, in fine weather too.
type Traits struct {
	Plain     bool          // its handler has the two methods of a LockHandler, and no capability
	Forgetful bool          // it does not remember released tokens
	Bounded   bool          // its handler bounds its calls
	Batches   bool          // its handler extends many claims with one call
	Distance  time.Duration // how much longer than latency a request takes each way, at most
}

// Call is one call of ExecuteWithinLock.
type Call struct {
	Pause      time.Duration // before it
	Works      time.Duration // how long fn takes unless its context ends
	Deaf       time.Duration // how much longer it goes on when that has ended
	Wait       time.Duration // 0: skip when busy
	Patience   time.Duration // of the caller's context; 0: none
	NoRenewal  bool
	MinHold    time.Duration // 0: none
	Occurrence int           // 0: none
	Fails      bool          // fn returns an error
}

// keep is how long an occurrence is remembered.
const keep = time.Hour

// Event is something that happens to a store, to a link between an instance and a store, or to an instance.
type Event struct {
	At       time.Duration
	What     string // one of the whats
	Store    int    // primary or secondary
	Instance int    // everybody, or one
	Weather  string // of links: one of the weathers
	Leases   int    // of a burst
	salt     uint64 // of the draws that the weather makes, whatever became of the events before
}

const (
	instances = 3

	primary   = 0
	secondary = 1
	everybody = -1

	link   = "link"   // Weather sets in
	forget = "forget" // the store restarts empty
	lose   = "lose"   // the store loses its last write, as a replica that is promoted without it
	crash  = "crash"  // the instance is gone in the middle of whatever it does, and another takes its place
	calm   = "calm"   // every link is fine
	burst  = "burst"  // the instance locks many resources, each for a short time
)

var storeNames = [...]string{primary: "primary", secondary: "secondary"}

// Generate makes the schedule of a seed. Most have a short expiry and many renewals; one in four has a long one, in which
// what is left behind in a store has the time to be seen.
func Generate(mode Mode, seed uint64) Schedule {
	r := rand.New(rand.NewPCG(seed, 1))
	s := Schedule{Seed: seed, Mode: mode, Expiry: time.Second}
	length, rest, works, gap := 12*time.Second, 400*time.Millisecond, 2500*time.Millisecond, 700*time.Millisecond
	if r.IntN(4) == 0 {
		s.Expiry = 30 * time.Second
		length, rest, works, gap = 100*time.Second, 8*time.Second, 20*time.Second, 5*time.Second
		if r.IntN(2) == 0 { // so idle that nobody sweeps up what another has left
			length, rest, works = 5*time.Minute, 2*time.Minute, 3*time.Second
		}
	}
	upTo := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) + 1 }
	for range instances {
		var plan []Call
		for at := time.Duration(0); at < length; {
			c := Call{Pause: upTo(rest), Works: upTo(works)}
			switch r.IntN(8) {
			case 0, 1:
				c.Wait = upTo(3*s.Expiry) + 10*time.Millisecond
			case 2, 3:
				c.NoRenewal = true
			case 4:
				c.Patience = upTo(works) + 10*time.Millisecond
			case 5:
				c.Deaf = upTo(s.Expiry)
			}
			plan = append(plan, c)
			at += c.Pause + c.Works/2 // since half of them are skipped
		}
		s.Plans = append(s.Plans, plan)
	}
	for at := upTo(gap); at < length; at += upTo(gap) {
		e := Event{At: at, What: link, Instance: everybody, Weather: weathers[r.IntN(len(weathers)-slow)].name, salt: r.Uint64()}
		if mode != Alone {
			e.Store = r.IntN(2)
		}
		switch n := r.IntN(20); {
		case n < 4 && mode != Alone: // alone it has to keep what it knows, or there is no promise
			e.What, e.Store = []string{forget, lose}[n%2], primary
		case n == 4:
			e.What, e.Instance = crash, r.IntN(instances)
		case n < 9: // one store, as seen by all
		case n < 15:
			e.Instance = r.IntN(instances)
		default:
			e.What = calm
		}
		s.Events = append(s.Events, e)
	}
	s.vary(rand.New(rand.NewPCG(seed, 2)), length, rest, works)
	r = rand.New(rand.NewPCG(seed, 3))
	for at := range s.Stores {
		s.Stores[at].Bounded = !s.Stores[at].Plain && r.IntN(2) == 0
	}
	r = rand.New(rand.NewPCG(seed, 4))
	for at := range s.Stores {
		s.Stores[at].Batches = !s.Stores[at].Plain && r.IntN(2) == 0
	}
	return s
}

// vary gives a schedule what not every one of them has. Its draws are its own: a schedule without any of it is what it
// would be if there were no such thing.
func (s *Schedule) vary(r *rand.Rand, length, rest, works time.Duration) {
	upTo := func(d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) + 1 }
	oneIn := func(n int) bool { return r.IntN(n) == 0 }
	odds := 6
	quiet := oneIn(5)
	if quiet { // nothing goes wrong but for an instance that crashes: what remains are hand-overs
		odds = 3
		s.Events = slices.DeleteFunc(s.Events, func(e Event) bool { return e.What != crash })
	}
	if oneIn(odds / 2) {
		s.Stores[secondary].Distance = 25 * time.Millisecond
	}
	for at := range s.Stores {
		switch r.IntN(odds) {
		case 0:
			s.Stores[at].Plain = true
		case 1:
			s.Stores[at].Forgetful = true
		}
	}
	if oneIn(3) { // a second resource, which is in less demand
		for range instances {
			var plan []Call
			for at := time.Duration(0); at < length; {
				c := Call{Pause: upTo(2 * rest), Works: upTo(works)}
				if oneIn(3) {
					c.Wait = upTo(3 * s.Expiry)
				}
				plan = append(plan, c)
				at += c.Pause + c.Works/2
			}
			s.Plans = append(s.Plans, plan)
		}
	}
	holds, occurs, short := oneIn(4), oneIn(4) && !s.Stores[primary].Plain && !s.Stores[secondary].Plain, oneIn(odds-2)
	for _, plan := range s.Plans {
		at := time.Duration(0)
		for i := range plan {
			c := &plan[i]
			at += c.Pause + c.Works/2
			if short { // and over before a conflict is proven
				c.Works = min(c.Works, upTo(100*time.Millisecond))
			}
			switch {
			case holds && oneIn(3):
				c.MinHold = upTo(2 * s.Expiry)
			case occurs && oneIn(2):
				c.Occurrence = 1 + int(6*at/length)
			}
			if c.Occurrence > 0 {
				c.Fails = oneIn(4)
			}
		}
	}
	if holds && oneIn(2) { // which late requests may change
		for i := range s.Events {
			if s.Events[i].What == link {
				s.Events[i].Weather = late
			}
		}
	}
	if oneIn(3) { // slow stores rather than broken ones
		for i := range s.Events {
			if s.Events[i].What == link && oneIn(2) {
				s.Events[i].Weather = []string{crawling, cold}[r.IntN(2)]
			}
		}
	}
	if oneIn(10) && s.Expiry == time.Second {
		s.Stores[secondary].Distance = 25 * time.Millisecond
		e := Event{At: upTo(length), What: burst, Instance: r.IntN(instances), Leases: 600, salt: r.Uint64()}
		at, _ := slices.BinarySearchFunc(s.Events, e, func(a, b Event) int { return int(a.At - b.At) })
		s.Events = slices.Insert(s.Events, at, e)
	}
	if s.Ends = fine; s.Expiry > time.Second {
		s.Ends = []string{fine, crawling, cold}[r.IntN(3)]
	}
}

// Length is when the last event has happened and the last call is long over.
func (s Schedule) Length() time.Duration {
	var length time.Duration
	for _, plan := range s.Plans {
		var at time.Duration
		for _, c := range plan {
			at += c.Pause + c.Works
		}
		length = max(length, at)
	}
	if n := len(s.Events); n > 0 {
		length = max(length, s.Events[n-1].At)
	}
	return length
}

// Size is how much there is to read.
func (s Schedule) Size() int {
	n := len(s.Events)
	for _, plan := range s.Plans {
		n += len(plan)
	}
	return n
}

// clone is a copy that shares nothing.
func (s Schedule) clone() Schedule {
	s.Events = slices.Clone(s.Events)
	s.Plans = slices.Clone(s.Plans)
	for i := range s.Plans {
		s.Plans[i] = slices.Clone(s.Plans[i])
	}
	return s
}

// String is the schedule as a person reads it.
func (s Schedule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, mode %s, expiry %v, in the end: %s\n", s.Seed, s.Mode, s.Expiry, s.Ends)
	for at, traits := range s.Stores {
		if traits != (Traits{}) && (at == primary || s.Mode != Alone) {
			fmt.Fprintf(&b, "  the %s %v\n", storeNames[at], traits)
		}
	}
	for i, plan := range s.Plans {
		for _, c := range plan {
			fmt.Fprintf(&b, "  instance %d, %s: %v\n", i%instances, resource(i/instances), c)
		}
	}
	for _, e := range s.Events {
		fmt.Fprintf(&b, "  %12v  %v\n", e.At, e)
	}
	return b.String()
}

// resource is the key of one of the resources. The first one is the service as a whole.
func resource(n int) string {
	if n == 0 {
		return key
	}
	return fmt.Sprintf("%s/%d", key, n)
}

func (t Traits) String() string {
	var is []string
	if t.Plain {
		is = append(is, "has two methods only")
	}
	if t.Forgetful {
		is = append(is, "does not remember released tokens")
	}
	if t.Bounded {
		is = append(is, "bounds its calls")
	}
	if t.Batches {
		is = append(is, "extends many claims at once")
	}
	if t.Distance > 0 {
		is = append(is, fmt.Sprintf("is up to %v away", t.Distance))
	}
	return strings.Join(is, " and ")
}

func (c Call) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "pauses %v, works %v", c.Pause, c.Works)
	if c.Wait > 0 {
		fmt.Fprintf(&b, ", waits up to %v", c.Wait)
	}
	if c.Patience > 0 {
		fmt.Fprintf(&b, ", is called off after %v", c.Patience)
	}
	if c.NoRenewal {
		b.WriteString(", is not renewed")
	}
	if c.Deaf > 0 {
		fmt.Fprintf(&b, ", is deaf for %v", c.Deaf)
	}
	if c.MinHold > 0 {
		fmt.Fprintf(&b, ", holds for at least %v", c.MinHold)
	}
	if c.Occurrence > 0 {
		fmt.Fprintf(&b, ", is occurrence %d", c.Occurrence)
	}
	if c.Fails {
		b.WriteString(", fails")
	}
	return b.String()
}

func (e Event) String() string {
	who := "every instance"
	if e.Instance != everybody {
		who = fmt.Sprintf("instance %d", e.Instance)
	}
	switch e.What {
	case forget:
		return fmt.Sprintf("the %s restarts empty", storeNames[e.Store])
	case lose:
		return fmt.Sprintf("the %s loses its last write", storeNames[e.Store])
	case crash:
		return who + " crashes"
	case calm:
		return "every link is fine"
	case burst:
		return fmt.Sprintf("%s locks %d resources", who, e.Leases)
	}
	return fmt.Sprintf("from %s to the %s: %s", who, storeNames[e.Store], e.Weather)
}
