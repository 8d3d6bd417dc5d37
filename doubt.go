package loki

import "sync"

// maxSettledKeys bounds the memory of doubts: what is forgotten is doubted again, which costs a round trip.
const maxSettledKeys = 10_000

// doubts remembers for which keys the two stores may disagree: all of them after an outage of the primary, one after a
// conflict. Such a key is acquired in sync order, the row before fn, until one mirror write has succeeded.
type doubts struct {
	mu      sync.Mutex
	all     bool
	settled map[string]struct{} // since all was raised
	keys    map[string]struct{}
}

func (d *doubts) about(key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.keys[key]; ok {
		return true
	}
	_, ok := d.settled[key]
	return d.all && !ok
}

func (d *doubts) raise(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.keys == nil {
		d.keys = make(map[string]struct{})
	}
	d.keys[key] = struct{}{}
	if len(d.keys) > maxSettledKeys {
		d.all, d.keys, d.settled = true, nil, nil
	}
}

func (d *doubts) raiseAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = true
	clear(d.settled)
}

func (d *doubts) settle(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.keys, key)
	if !d.all {
		return
	}
	if d.settled == nil || len(d.settled) >= maxSettledKeys {
		d.settled = make(map[string]struct{})
	}
	d.settled[key] = struct{}{}
}
