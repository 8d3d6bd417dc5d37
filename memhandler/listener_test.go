package memhandler_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/memhandler"
)

func listen(t *testing.T, h *memhandler.Handler, key string) <-chan struct{} {
	t.Helper()
	frees, err := h.Notify(t.Context(), key)
	require.NoError(t, err)
	return frees
}

// told is whether frees has a value, which it takes.
func told(frees <-chan struct{}) bool {
	select {
	case _, ok := <-frees:
		return ok
	default:
		return false
	}
}

// TestWhatIsToldAndWhatIsNot knows what the contract leaves open: here nobody is woken for nothing.
func TestWhatIsToldAndWhatIsNot(t *testing.T) {
	quiet, mirrored, longer, shorter, below, another := claim("a"), claim("a"), claim("a"), claim("a"), claim("a"), claim("a")
	quiet.Quiet, mirrored.Mirrored, another.Key = true, true, "another"
	longer.Expiry, shorter.Expiry, below.Expiry = time.Minute+1, time.Minute-time.Millisecond, time.Minute-1
	superseding := func(expiry time.Duration) loki.Claim {
		c := claim("b")
		c.Supersedes, c.Expiry = "a", expiry
		return c
	}
	releases := func(c loki.Claim) func(*testing.T, *memhandler.Handler) {
		return func(t *testing.T, h *memhandler.Handler) { release(t, h, c) }
	}
	grants := func(c loki.Claim) func(*testing.T, *memhandler.Handler) {
		return func(t *testing.T, h *memhandler.Handler) { grant(t, h, c) }
	}
	extends := func(c loki.Claim) func(*testing.T, *memhandler.Handler) {
		return func(t *testing.T, h *memhandler.Handler) {
			_, err := h.Extend(t.Context(), c)
			require.NoError(t, err)
		}
	}
	for name, tt := range map[string]struct {
		does func(*testing.T, *memhandler.Handler)
		told bool
	}{
		"release":                   {releases(claim("a")), true},
		"release, mirrored":         {releases(mirrored), true},
		"release, quiet":            {releases(quiet), false},
		"release by another":        {releases(claim("b")), false},
		"release of another key":    {releases(another), false},
		"granted again":             {grants(claim("a")), false},
		"granted again for longer":  {grants(longer), false},
		"granted again for shorter": {grants(shorter), true},
		"the same when rounded up":  {grants(below), false},
		"refused":                   {grants(claim("b")), false},
		"extended for longer":       {extends(longer), false},
		"extended for shorter":      {extends(shorter), true},
		"extended by another":       {extends(claim("b")), false},
		"superseded":                {grants(superseding(time.Minute)), false},
		"superseded for shorter":    {grants(superseding(time.Second)), true},
		"expired":                   {func(*testing.T, *memhandler.Handler) { time.Sleep(2 * time.Minute) }, false},
		"released when expired": {func(t *testing.T, h *memhandler.Handler) {
			time.Sleep(2 * time.Minute)
			release(t, h, claim("a"))
		}, false},
		"taken when expired": {func(t *testing.T, h *memhandler.Handler) {
			time.Sleep(2 * time.Minute)
			grant(t, h, superseding(time.Millisecond))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := memhandler.New()
				early := listen(t, h, "k") // before there is anything to know of the key
				grant(t, h, claim("a"))
				late := listen(t, h, "k")
				require.False(t, told(early))
				tt.does(t, h)
				require.Equal(t, tt.told, told(early))
				require.Equal(t, tt.told, told(late), "everybody who listens")
			})
		})
	}
}

func TestValuesAreMerged(t *testing.T) {
	h := memhandler.New()
	frees := listen(t, h, "k")
	for range 3 {
		grant(t, h, claim("a"))
		release(t, h, claim("a")) // waits for no reader
	}
	require.True(t, told(frees))
	require.False(t, told(frees), "what was told of already is told once")
	grant(t, h, claim("a"))
	release(t, h, claim("a"))
	require.True(t, told(frees), "and again when it happens again")
}

func TestNothingIsLeftOfAListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := memhandler.New()
		stays := listen(t, h, "0")
		before := runtime.NumGoroutine()
		ctx, cancel := context.WithCancel(t.Context())
		var gone []<-chan struct{}
		for i := range 1000 {
			frees, err := h.Notify(ctx, fmt.Sprint(i%10))
			require.NoError(t, err)
			gone = append(gone, frees)
		}
		require.Len(t, h.ListenedKeys(), 10)
		require.IsIncreasing(t, h.ListenedKeys())
		require.Equal(t, 1001, h.Listeners())
		require.LessOrEqual(t, runtime.NumGoroutine(), before, "a goroutine for each who listens")

		cancel()
		synctest.Wait()
		require.Equal(t, []string{"0"}, h.ListenedKeys())
		require.Equal(t, 1, h.Listeners())
		require.Zero(t, h.Remembered(), "a key that nobody locked")
		c := claim("a")
		c.Key = "0"
		grant(t, h, c)
		release(t, h, c)
		require.True(t, told(stays))
		for _, frees := range gone {
			require.False(t, told(frees))
		}
	})
}

func TestNotifyWithAnEndedContext(t *testing.T) {
	h := memhandler.New()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := h.Notify(ctx, "k")
	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, h.ListenedKeys())
}

// TestNothingIsMissed has a release race with a Notify: what it was too late to be told of, a look afterwards finds.
func TestNothingIsMissed(t *testing.T) {
	h := memhandler.New()
	for range 2000 {
		grant(t, h, claim("a"))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { release(t, h, claim("a")) })
		frees, err := h.Notify(ctx, "k")
		require.NoError(t, err)
		_, held, err := h.Inspect(t.Context(), "k")
		require.NoError(t, err)
		wg.Wait()
		require.True(t, !held || told(frees))
		cancel()
	}
	require.Eventually(t, func() bool { return len(h.ListenedKeys()) == 0 }, 10*time.Second, time.Millisecond)
}
