package loki

import (
	"sync"
	"time"
)

// degree is how far the stores are trusted to agree about a key.
type degree int

const (
	trustedKey degree = iota
	suspectKey        // an outage of the primary, or its loss of a record: another instance may have gone to the secondary
	refusedKey        // the secondary has named another holder
)

// suspicion is what is known against a key.
type suspicion struct {
	degree degree
	by     Holder    // of a refused key: whom the secondary named
	heard  time.Time // likewise: when that answer came
	until  time.Time // when it ends if the secondary has not agreed before
}

// suspects are the keys about which the two stores may disagree. In the mode async they are acquired in both stores, one
// after the other, until one write of the key to the secondary has succeeded: see async.mayStart. Every suspicion ends:
// after the time in which another holder's record expires, if that is not renewed. One that is renewed shows at the mirror
// write, as in any other case.
type suspects struct {
	mu     sync.Mutex
	keys   map[string]suspicion
	all    time.Time           // until when every key is suspect, but for those below
	agreed map[string]struct{} // keys that the secondary has recorded since
}

// maxSuspects bounds the memory of suspects. When keys is full, every key becomes suspect in the lower degree; when agreed is
// full, the keys in it become suspect again.
const maxSuspects = 10_000

// of returns what is known against a key.
func (s *suspects) of(key string) suspicion {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if k, ok := s.keys[key]; ok {
		if now.Before(k.until) {
			if k.by.Left > 0 {
				k.by.Left = k.until.Sub(now)
			}
			return k
		}
		delete(s.keys, key)
	}
	if _, ok := s.agreed[key]; !ok && now.Before(s.all) {
		return suspicion{degree: suspectKey, until: s.all}
	}
	return suspicion{}
}

// outage makes every key suspect for the longest expiry: that of a record which another instance may have made meanwhile.
func (s *suspects) outage(longest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = later(s.all, time.Now().Add(longest))
	clear(s.agreed)
}

// lost makes one key suspect: the primary has lost its record.
func (s *suspects) lost(key string, expiry time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(key, suspicion{degree: suspectKey, until: time.Now().Add(expiry)})
}

// refused makes a key suspect because an answer of the secondary names another holder: until its record expires, or, if the
// store did not say when that is, for the caller's expiry. It is called for every such answer: the holder may have changed,
// or have renewed its record.
func (s *suspects) refused(key string, a answer) {
	expiry := a.expiry
	if a.HeldBy.Left > 0 {
		expiry = min(a.HeldBy.Left, MaxExpiry)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	k := suspicion{degree: refusedKey, by: a.HeldBy, heard: now, until: now.Add(expiry)}
	if before := s.keys[key]; before.degree == refusedKey && a.sent.Before(before.heard) { // which of the two is newer is not known
		k.until = later(k.until, before.until)
	}
	s.add(key, k)
}

// granted ends the suspicion of a refused key: its other holder is gone. The grant of a request that was sent before the
// refusal was heard says nothing about it.
func (s *suspects) granted(key string, a answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.keys[key]; k.degree == refusedKey && k.heard.Before(a.sent) {
		delete(s.keys, key)
	}
}

// add is called with mu held.
func (s *suspects) add(key string, k suspicion) {
	if s.keys == nil {
		s.keys = make(map[string]suspicion)
	}
	if len(s.keys) >= maxSuspects {
		for other, k := range s.keys { // they all become suspect in the lower degree
			s.all = later(s.all, k.until)
			delete(s.keys, other)
		}
		clear(s.agreed)
	}
	delete(s.agreed, key)
	s.keys[key] = k
}

// hasAgreed notes that the secondary has recorded a claim of the key.
func (s *suspects) hasAgreed(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.keys, key)
	if !time.Now().Before(s.all) {
		clear(s.agreed)
		return
	}
	if s.agreed == nil || len(s.agreed) >= maxSuspects {
		s.agreed = make(map[string]struct{})
	}
	s.agreed[key] = struct{}{}
}
