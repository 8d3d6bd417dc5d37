package postgreshandler_test

import (
	"fmt"
	"sync"
	"testing"
)

// All operations on few keys at once, and sweeping: no error, as a deadlock would be one, and one holder at a time.
func TestServerEverythingAtOnce(t *testing.T) {
	t.Parallel()
	const contenders = 8
	s := newStore(t)
	s.db.SetMaxOpenConns(contenders)
	s.db.SetMaxIdleConns(contenders)
	s.exec(t, `INSERT INTO $T SELECT 'old' || i, 't', 'h', now() - interval '1 hour', now() - interval '61 seconds', 1 FROM generate_series(1, 500) AS i`)
	var wg sync.WaitGroup
	var inside [3]sync.Mutex
	for i := range contenders {
		wg.Go(func() {
			for round := range 60 {
				at := (i + round) % len(inside)
				c := s.Claim(fmt.Sprint(at))
				g, err := s.Grant(t.Context(), c)
				if err != nil {
					t.Error(err)
					return
				}
				if !g.Held {
					continue
				}
				if !inside[at].TryLock() {
					t.Error("two hold the key at once")
					return
				}
				_, err = s.Extend(t.Context(), c)
				inside[at].Unlock()
				if err == nil {
					err = s.Release(t.Context(), c)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
