package loki_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
)

// A server is killed and started again while a job runs and others come and go.
func TestHealthReportsAKilledServerOnce(t *testing.T) {
	t.Parallel()
	const expiry = time.Minute // so that no renewal is due meanwhile
	persistent := []string{"--appendonly", "yes", "--appendfsync", "always"}
	bothModes(t, func(t *testing.T, m loki.MirrorMode) {
		t.Parallel()
		for _, killed := range []string{"primary", "secondary"} {
			t.Run(killed, func(t *testing.T) {
				t.Parallel()
				stores := map[string]*realRedis{"primary": startRedis(t, persistent...), "secondary": startRedis(t, persistent...)}
				log := &eventLog{}
				l := instance(t, stores["primary"].handler(noRetries), stores["secondary"].handler(noRetries), mode(m), watched(log))
				runs := func() error {
					return l.ExecuteWithinLock(t.Context(), expiry, func(context.Context) error { return nil }, loki.WithResource("short"))
				}
				require.NoError(t, runs())
				h := hold(t, l, expiry)
				require.Empty(t, log.reported())

				stores[killed].Kill()
				decides := m == loki.MirrorSync && killed == "secondary"
				for range 100 {
					if err := runs(); decides {
						require.ErrorIs(t, err, loki.ErrUnavailable)
					} else {
						require.NoError(t, err)
					}
				}
				level := "WARN"
				if decides {
					level = "ERROR"
				}
				down := level + " down " + killed
				eventually(t, func() bool { return len(log.reported()) > 0 }, "the outage is reported")
				require.Equal(t, []string{down}, log.reported())

				stores[killed].Restart(t)
				eventually(t, func() bool { _ = runs(); return len(log.of(loki.KindUp)) > 0 }, "the end is reported")
				require.NoError(t, runs())
				require.NoError(t, h.ctx.Err())
				require.NoError(t, h.end())
				require.Equal(t, []string{down, "INFO up " + killed}, log.reported(), "and nothing else that a person sees")
				up := log.of(loki.KindUp)[0]
				require.Positive(t, up.Took)
				require.Positive(t, up.Calls)
			})
		}
	})
}

// Nothing else says so: the job goes on by the secondary's record.
func TestHealthReportsAnOverwrittenKeyUnderMirrorSync(t *testing.T) {
	t.Parallel()
	r, log := startRedis(t), &eventLog{}
	l := instance(t, r.handler(), memoryStore(t), mode(loki.MirrorSync), watched(log))
	h := hold(t, l, 1500*time.Millisecond)
	require.NoError(t, r.direct.Set(t.Context(), lockKey, strings.Replace(r.value(), r.token(), "another", 1), time.Minute).Err())
	eventually(t, func() bool { return len(log.reported()) > 0 }, "it is reported")
	require.NoError(t, h.ctx.Err())
	require.Equal(t, []string{"WARN forgotten primary"}, log.reported())
	require.NoError(t, r.direct.Del(t.Context(), lockKey).Err())
	_ = h.end()
}
