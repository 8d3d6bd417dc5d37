package redisstore

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
)

// lingering is a context as the Locker's is: it lives on after its deadline.
type lingering struct {
	context.Context
	deadline time.Time
}

func (c lingering) Deadline() (time.Time, bool) { return c.deadline, true }

// A message that waits when its deadline passes is not sent any more, although its context lives on. One that is on its way is
// waited for.
func TestBatcher_SendsNothingAfterTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int32
		hang := make(chan struct{})
		b := batcher{carry: func(_ context.Context, _ queueID, messages []*message) {
			sent.Add(int32(len(messages)))
			<-hang
		}}
		message := func() *message { return &message{Cmd: redis.NewCmd(t.Context(), "ping")} }
		patient := lingering{t.Context(), time.Now().Add(time.Hour)}
		for range maxSending + maxOverdue {
			go func() { _ = b.do(patient, queueID{}, message()) }()
			time.Sleep(2 * overdue) // or several would go together
		}
		synctest.Wait()
		require.EqualValues(t, maxSending+maxOverdue, sent.Load())

		begun := time.Now()
		err := b.do(lingering{t.Context(), begun.Add(10 * time.Second)}, queueID{}, message())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "too many requests to this server were under way")
		require.True(t, loki.IsUnavailable(err))
		require.Equal(t, 10*time.Second, time.Since(begun))
		close(hang)
		synctest.Wait()
		require.EqualValues(t, maxSending+maxOverdue, sent.Load(), "it was sent when there was room again")
		require.True(t, b.queues[queueID{}].idle())
	})
}

func TestBatcher_WaitsBeyondTheDeadlineForWhatWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := batcher{carry: func(context.Context, queueID, []*message) { time.Sleep(3 * time.Second) }}
		done := make(chan error, 2*maxSending)
		for range 2 * maxSending { // the second half waits, and is sent together
			go func() {
				done <- b.do(lingering{t.Context(), time.Now().Add(time.Second)}, queueID{}, &message{Cmd: redis.NewCmd(t.Context(), "ping")})
			}()
		}
		synctest.Wait()
		time.Sleep(10 * time.Second)
		for range 2 * maxSending {
			require.NoError(t, <-done)
		}
	})
}

// A queue is kept for the next call; nodes that have gone are not.
func TestBatcher_KeepsFewIdleQueues(t *testing.T) {
	b := batcher{carry: func(context.Context, queueID, []*message) {}}
	send := func(node *redis.Client) *queue {
		require.NoError(t, b.do(t.Context(), queueID{node: node}, &message{Cmd: redis.NewCmd(t.Context(), "ping")}))
		return b.queues[queueID{node: node}]
	}
	first := send(nil)
	require.Same(t, first, send(nil))
	for range 10 * maxIdle {
		send(new(redis.Client))
		require.LessOrEqual(t, len(b.queues), maxIdle)
	}
}
