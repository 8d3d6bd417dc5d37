package memhandler_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/memhandler"
)

func TestWhatIsOverIsForgottenInPassing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := memhandler.New()
		const keys = 1000
		for i := range keys {
			c := claim("t")
			c.Key = fmt.Sprint(i)
			grant(t, h, c)
			if i%2 == 0 {
				release(t, h, c) // the others expire
			}
		}
		require.Equal(t, keys, h.Remembered())
		time.Sleep(time.Minute + memhandler.RememberFor)
		for range keys {
			_, _, err := h.Inspect(t.Context(), "another")
			require.NoError(t, err)
		}
		require.Zero(t, h.Remembered())
	})
}

func TestMemoryHasALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := memhandler.New()
		held := claim("held")
		held.Key = "held"
		held.Expiry = 24 * time.Hour
		grant(t, h, held)
		for i := range memhandler.RememberKeys + 100 {
			c := claim("t")
			c.Key = fmt.Sprint(i)
			grant(t, h, c)
			release(t, h, c)
		}
		require.LessOrEqual(t, h.Remembered(), memhandler.RememberKeys+2)
		require.Equal(t, []string{"held"}, h.HeldKeys(), "a claim is never forgotten")
	})
}

// TestMemoryAgainstAModel does at random what can be done, and compares with a map that is searched from end to end.
func TestMemoryAgainstAModel(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 0))
				type holder struct {
					token string
					until time.Time
				}
				model, fences := make(map[string]holder), make(map[string]int64)
				h := memhandler.New()
				for range 2000 {
					c := claim(fmt.Sprint(random.IntN(4)))
					c.Key = fmt.Sprint(random.IntN(6))
					c.Expiry = time.Duration(1+random.IntN(5000)) * time.Millisecond
					c.Mirrored = random.IntN(2) == 0
					if random.IntN(4) == 0 {
						c.Supersedes = fmt.Sprint(random.IntN(4))
					}
					who := model[c.Key]
					if !time.Now().Before(who.until) {
						who = holder{}
					}
					next := holder{c.Token, time.Now().Add(c.Expiry)}
					switch random.IntN(4) {
					case 0, 1:
						g := grant(t, h, c)
						want := who.token == "" || who.token == c.Token || who.token == c.Supersedes
						require.Equal(t, want, g.Held)
						if g.Held {
							if who.token == c.Token {
								require.Equal(t, fences[c.Key], g.Fence)
							} else {
								require.Greater(t, g.Fence, fences[c.Key])
							}
							model[c.Key], fences[c.Key] = next, g.Fence
						}
					case 2:
						held, err := h.Extend(t.Context(), c)
						require.NoError(t, err)
						require.Equal(t, who.token == c.Token, held)
						if held {
							model[c.Key] = next
						}
					case 3:
						release(t, h, c)
						if who.token == c.Token {
							delete(model, c.Key)
						}
					}
					require.True(t, h.Consistent())
					time.Sleep(time.Duration(random.IntN(500)) * time.Millisecond)
					if random.IntN(50) == 0 {
						time.Sleep(10 * time.Second) // more is over than one call sweeps
					}
				}
			})
		})
	}
}
