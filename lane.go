package loki

import (
	"slices"
	"sync"
	"time"
)

// mirror puts what goes to the secondary in order: for one key, one request at a time, first come first served, also
// across successive claims. Tokens alone would keep the stores right, but a release that overtakes its own lock leaves
// a row behind until it is taken back.
type mirror struct {
	slots chan struct{} // taken by background writes only: somebody waits for the others

	mu      sync.Mutex       // guards what follows; never held while a job runs
	lanes   map[string]*lane // a key is here while it has jobs
	waiting int              // background jobs that have not begun
}

type lane struct {
	jobs []*mirrorJob

	// hurry wakes a lane that waits for a slot: somebody is behind the background job, or nobody is any more.
	hurry chan struct{}
}

// foreground reports whether somebody waits for one of the lane's jobs. It is called with mirror.mu held.
func (ln *lane) foreground() bool {
	return slices.ContainsFunc(ln.jobs, func(j *mirrorJob) bool { return !j.background })
}

type mirrorJob struct {
	run        func()
	background bool

	// refused, of a request for a new claim, takes the refusal of another request that was sent after queued.
	refused func(Holder)
	queued  time.Time
}

func newMirror() *mirror {
	return &mirror{slots: make(chan struct{}, MirrorConcurrency), lanes: make(map[string]*lane)}
}

// enqueue gives a job its place. It refuses (nil) only what is in the background, over the limit and not a release.
func (m *mirror) enqueue(key string, job *mirrorJob, always bool) *mirrorJob {
	m.mu.Lock()
	defer m.mu.Unlock()
	if job.background {
		if m.waiting >= MaxMirrorBacklog && !always {
			return nil
		}
		m.waiting++
	}
	ln := m.lanes[key]
	if ln == nil {
		ln = &lane{hurry: make(chan struct{}, 1)}
		m.lanes[key] = ln
		go m.drive(key, ln)
	}
	ln.jobs = append(ln.jobs, job)
	if !job.background {
		ln.wake()
	}
	return job
}

func (ln *lane) wake() {
	select {
	case ln.hurry <- struct{}{}:
	default:
	}
}

// share gives a refusal to the requests for new claims that are next and were there when it was sent: each would get the same
// answer, and the last of many would have no time left to ask. What is behind another request waits for that.
func (m *mirror) share(key string, refusal answer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ln := m.lanes[key]
	for len(ln.jobs) > 0 && ln.jobs[0].refused != nil && !ln.jobs[0].queued.After(refusal.sent) {
		ln.jobs[0].refused(refusal.HeldBy)
		ln.jobs = slices.Delete(ln.jobs, 0, 1)
	}
}

// drop takes a job back, and reports whether it had not begun.
func (m *mirror) drop(key string, job *mirrorJob) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	ln := m.lanes[key]
	if ln == nil {
		return false
	}
	i := slices.Index(ln.jobs, job)
	if i < 0 {
		return false
	}
	ln.jobs = slices.Delete(ln.jobs, i, i+1)
	if job.background {
		m.waiting--
	}
	ln.wake()
	return true
}

// drive runs a key's jobs until there are none. A background job takes a slot before it leaves the queue, so that it
// can still be dropped while it waits for one; with somebody waiting behind it, it goes without.
func (m *mirror) drive(key string, ln *lane) {
	hasSlot := false
	for {
		m.mu.Lock()
		if len(ln.jobs) == 0 {
			delete(m.lanes, key)
			m.mu.Unlock()
			if hasSlot {
				<-m.slots
			}
			return
		}
		job := ln.jobs[0]
		if job.background && !hasSlot && !ln.foreground() {
			m.mu.Unlock()
			select {
			case m.slots <- struct{}{}:
				hasSlot = true
			case <-ln.hurry:
			}
			continue
		}
		ln.jobs = slices.Delete(ln.jobs, 0, 1)
		if job.background {
			m.waiting--
		}
		m.mu.Unlock()
		job.run()
		if hasSlot {
			<-m.slots
			hasSlot = false
		}
	}
}
