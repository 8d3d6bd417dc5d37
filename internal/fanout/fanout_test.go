package fanout_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/fanout"
)

// state is what a listener finds in its channel without waiting.
func state(l *fanout.Listener) string {
	select {
	case _, open := <-l.C:
		if !open {
			return "closed"
		}
		return "woken"
	default:
		return "quiet"
	}
}

func TestHub_WakesTheListenersOfAKey(t *testing.T) {
	var h fanout.Hub
	a1, a2, b := h.Add("a"), h.Add("a"), h.Add("b")
	h.Wake("a")
	h.Wake("nobody's")
	require.Equal(t, "woken", state(a1))
	require.Equal(t, "woken", state(a2))
	require.Equal(t, "quiet", state(b))
	h.WakeAll()
	for _, l := range []*fanout.Listener{a1, a2, b} {
		require.Equal(t, "woken", state(l))
	}
}

func TestHub_MergesWakeUpsThatNobodyHasRead(t *testing.T) {
	var h fanout.Hub
	slow, quick := h.Add("k"), h.Add("k")
	for range 3 {
		h.Wake("k") // and waits for nobody
		require.Equal(t, "woken", state(quick))
	}
	require.Equal(t, "woken", state(slow))
	require.Equal(t, "quiet", state(slow))
}

func TestHub_ARemovedListenerIsNotWoken(t *testing.T) {
	var h fanout.Hub
	first, last, other := h.Add("k"), h.Add("k"), h.Add("other")
	require.Equal(t, []string{"k", "other"}, h.Keys())
	require.Equal(t, 3, h.Len())
	require.False(t, h.Remove(first))
	require.False(t, h.Remove(first), "it is gone already, and was not the last")
	require.Equal(t, 2, h.Len())
	require.True(t, h.Remove(last), "the last of its key")
	require.False(t, h.Remove(last))
	require.Equal(t, []string{"other"}, h.Keys())
	h.Wake("k")
	h.WakeAll()
	require.Equal(t, "quiet", state(first))
	require.Equal(t, "quiet", state(last))
	require.Equal(t, "woken", state(other))
	require.True(t, h.Remove(other))
	require.Empty(t, h.Keys())
	require.Zero(t, h.Len())
}

func TestHub_CloseEndsWhatIsToCome(t *testing.T) {
	var h fanout.Hub
	woken, quiet, removed := h.Add("k"), h.Add("other"), h.Add("k")
	h.Remove(removed)
	h.Wake("k")
	h.Close()
	h.Close()
	require.Equal(t, "woken", state(woken), "a wake-up that came before can still be read")
	require.Equal(t, "closed", state(woken))
	require.Equal(t, "closed", state(quiet))
	require.Equal(t, "quiet", state(removed))
	require.Zero(t, h.Len())
	require.False(t, h.Remove(woken))
	h.WakeAll()

	late := h.Add("k")
	require.Equal(t, "closed", state(late))
	require.False(t, h.Remove(late))
}

func TestHub_ManyGoroutinesAtOnce(t *testing.T) {
	var h fanout.Hub
	stay := h.Add("k")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				l := h.Add("k")
				h.Wake("k")
				<-l.C // its own, or another's
				h.Remove(l)
			}
		})
	}
	wg.Wait()
	require.Equal(t, 1, h.Len())
	require.Equal(t, "woken", state(stay))
	h.Close()
}
