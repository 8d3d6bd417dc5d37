package simulation

import "time"

// Shrink cuts a schedule down as long as breaks says that what is left still breaks a promise: first whole instances,
// then ever smaller parts of what happens, then the frills of each call. It asks at most budget times.
func Shrink(s Schedule, budget int, breaks func(Schedule) bool) Schedule {
	k := shrinker{best: s.clone(), budget: budget, breaks: breaks}
	for before := -1; before != k.best.Size() && k.budget > 0; {
		before = k.best.Size()
		for i := range k.best.Plans {
			k.without(len(k.best.Plans[i]), func(s *Schedule, from, to int) { s.Plans[i] = drop(s.Plans[i], from, to) })
		}
		k.without(len(k.best.Events), func(s *Schedule, from, to int) { s.Events = append(s.Events[:from:from], s.Events[to:]...) })
	}
	for i := range k.best.Plans {
		for j := range k.best.Plans[i] {
			for _, plain := range []func(*Call){
				func(c *Call) { c.Wait = 0 },
				func(c *Call) { c.Patience = 0 },
				func(c *Call) { c.NoRenewal = false },
				func(c *Call) { c.Deaf = 0 },
				func(c *Call) { c.MinHold = 0 },
				func(c *Call) { c.Occurrence, c.Fails = 0, false },
				func(c *Call) { c.Fails = false },
			} {
				k.try(func(s *Schedule) { plain(&s.Plans[i][j]) })
			}
		}
	}
	for at := range k.best.Stores {
		k.try(func(s *Schedule) { s.Stores[at].Plain = false })
		k.try(func(s *Schedule) { s.Stores[at].Forgetful = false })
		k.try(func(s *Schedule) { s.Stores[at].Distance = 0 })
	}
	k.try(func(s *Schedule) { s.Ends = fine })
	return k.best
}

type shrinker struct {
	best   Schedule
	budget int
	breaks func(Schedule) bool
}

// try keeps a change if what comes of it still breaks a promise.
func (k *shrinker) try(change func(*Schedule)) bool {
	candidate := k.best.clone()
	change(&candidate)
	if k.budget <= 0 || candidate.String() == k.best.String() {
		return false
	}
	k.budget--
	if !k.breaks(candidate) {
		return false
	}
	k.best = candidate
	return true
}

// without tries to do without parts of n things: all of them, halves, quarters, and so on to each.
func (k *shrinker) without(n int, cut func(s *Schedule, from, to int)) {
	for size := n; size > 0; size /= 2 {
		for to := n; to > 0; to -= size {
			from := max(to-size, 0)
			if k.try(func(s *Schedule) { cut(s, from, to) }) {
				n -= to - from
			}
		}
	}
}

// drop takes calls out of a plan. The next one starts when it would have, as far as that can be told.
func drop(plan []Call, from, to int) []Call {
	var skipped time.Duration
	for _, c := range plan[from:to] {
		skipped += c.Pause + c.Works
	}
	rest := append(plan[:from:from], plan[to:]...)
	if from < len(rest) {
		rest[from].Pause += skipped
	}
	return rest
}
