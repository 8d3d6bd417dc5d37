package sqltest

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lokilock/loki"
)

// RandomClaims has several callers grant, renew, release and abandon short claims on one key, and fails t if two held it at
// once, or if a later grant got a smaller fencing token. It returns how many claims were granted, and how many calls failed
// because the store was unavailable.
func RandomClaims(t *testing.T, s *Store) (granted, unavailable int) {
	t.Helper()
	const callers, rounds, wanted = 6, 80, 20
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex // guards grants and failed
		grants []grant
		failed []error
	)
	isEnough := func(round int) bool { // the faster the server, the fewer claims end within so many rounds
		mu.Lock()
		defer mu.Unlock()
		return round >= rounds && (len(grants) >= wanted || round >= 20*rounds)
	}
	for caller := range callers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(caller)))
			for round := 0; !isEnough(round); round++ {
				g, err := randomClaim(t.Context(), s, r)
				mu.Lock()
				if err != nil {
					failed = append(failed, err)
				}
				if g.fence != 0 {
					grants = append(grants, g)
				}
				mu.Unlock()
				pause(t.Context(), time.Duration(r.IntN(3))*time.Millisecond)
			}
		})
	}
	wg.Wait()
	for _, err := range failed {
		if !loki.IsUnavailable(err) {
			t.Error(err)
		}
	}
	requireOrder(t, grants)
	return len(grants), len(failed)
}

// grant is what one caller knows of a claim that was granted, by this process's clock.
type grant struct {
	fence          int64
	sent, answered time.Time
	until          time.Time // for as long it holds at least
}

// randomClaim makes one claim, and does with it what callers do.
func randomClaim(ctx context.Context, s *Store, r *rand.Rand) (grant, error) {
	c := s.Claim("random")
	c.Expiry = time.Duration(5+r.IntN(40)) * time.Millisecond
	sent := time.Now()
	answer, err := s.Grant(ctx, c)
	if err != nil || !answer.Held {
		return grant{}, err
	}
	g := grant{fence: answer.Fence, sent: sent, answered: time.Now(), until: sent.Add(c.Expiry)}
	if r.IntN(3) == 0 {
		sent := time.Now()
		if held, err := s.Extend(ctx, c); err != nil {
			return g, err
		} else if held {
			g.until = sent.Add(c.Expiry)
		}
	}
	pause(ctx, time.Duration(r.IntN(10))*time.Millisecond)
	if r.IntN(3) == 0 {
		return g, nil // as a process that died
	}
	if released := time.Now(); released.Before(g.until) {
		g.until = released
	}
	return g, s.Release(ctx, c)
}

// requireOrder checks the grants in the order of their fencing tokens, which is the order in which the store made them: each is
// answered after the one before is over, and after each of those before was asked for.
func requireOrder(t *testing.T, grants []grant) {
	t.Helper()
	slices.SortFunc(grants, func(a, b grant) int { return cmp.Compare(a.fence, b.fence) })
	var until, sent time.Time // the latest of the grants before
	for i, g := range grants {
		if i > 0 && g.fence == grants[i-1].fence {
			t.Errorf("two claims have the fencing token %d", g.fence)
		}
		if g.answered.Before(until) {
			t.Errorf("a claim with the fencing token %d was granted %v before another one was over", g.fence, until.Sub(g.answered))
		}
		if g.answered.Before(sent) {
			t.Errorf("the fencing token %d was issued after a larger one", g.fence)
		}
		until, sent = later(until, g.until), later(sent, g.sent)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// pause is what a caller does besides.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
