package redlockhandler_test

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/redlockhandler"
)

// straggling is a client whose second command reaches the server once more when the test says so: it lay in the buffer of
// a connection that is gone. The client has sent it again and got an answer, or has given up.
type straggling struct {
	*redis.Client
	givesUp bool

	mu       sync.Mutex
	calls    int
	came     chan struct{}
	straggle func()
}

func (s *straggling) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls++; s.calls != 2 {
		return s.Client.EvalSha(ctx, sha, keys, args...)
	}
	s.straggle = func() { s.Client.EvalSha(context.WithoutCancel(ctx), sha, keys, args...) }
	defer close(s.came)
	if !s.givesUp {
		return s.Client.EvalSha(ctx, sha, keys, args...)
	}
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(io.EOF)
	return cmd
}

// A vote that was given back and cast again has the same token, and the release from between may come last.
func TestLateReleaseUndoesNoLaterVote(t *testing.T) {
	for name, givesUp := range map[string]bool{"a release that was not answered": true, "a release that was sent twice": false} {
		t.Run(name, func(t *testing.T) {
			q := newQuorum(t, 3)
			warm := claim("warm", time.Minute) // the servers have the scripts after this
			q.mustHold(warm)
			q.everywhere(warm)
			q.release(warm)
			q.nowhere()
			other := claim("k", time.Minute)
			c := claim("k", time.Minute)
			q.at[1].mustHold(other)
			late := &straggling{Client: q.at[0].server.Client(t, noWait), givesUp: givesUp, came: make(chan struct{})}
			_, rival := q.another()
			mine, _ := q.another()
			mine[2].shutDown()
			go func() {
				<-late.came
				q.at[1].do("DEL", "loki:{k}", "loki:{k}:fence")
			}()
			handler := redlockhandler.New([]redlockhandler.Client{late, mine[1], mine[2]}, redlockhandler.WithServerTimeout(patience))
			held, err := handler.Lock(q.context(), c)
			<-late.came
			late.straggle()
			if givesUp { // the vote may be there still, and is not counted before its release was answered
				requireUnavailable(t, err, "not asked in time")
				eventually(t, func() bool { return handler.Release(q.context(), c) == nil }, "as the Locker does after an error")
				q.nowhere()
				return
			}
			require.NoError(t, err)
			require.True(t, held, "the rival is gone, and two servers of three are there")
			second, err := rival.Lock(q.context(), claim("k", time.Minute))
			require.NoError(t, err)
			require.False(t, second, "two hold")
		})
	}
}

// A claim that is asked for again, as by a repeated call or a mirror write, may find the vote that the call before has
// released without an answer.
func TestCountsNoVoteWhoseReleaseMayStillLand(t *testing.T) {
	q := newQuorum(t, 3)
	warm := claim("warm", time.Minute)
	q.mustHold(warm)
	q.everywhere(warm)
	q.release(warm)
	q.nowhere()
	other, c := claim("k", time.Minute), claim("k", time.Minute)
	q.at[1].mustHold(other)
	q.at[2].mustHold(other)
	late := &straggling{Client: q.at[0].server.Client(t, noWait), givesUp: true, came: make(chan struct{})}
	_, rival := q.another()
	mine, _ := q.another()
	handler := redlockhandler.New([]redlockhandler.Client{late, mine[1], mine[2]}, redlockhandler.WithServerTimeout(patience))
	held, err := handler.Lock(q.context(), c)
	require.NoError(t, err)
	require.False(t, held)
	<-late.came
	mine[2].shutDown()
	q.at[1].release(other)
	q.at[2].release(other)
	require.Eventually(t, func() bool {
		held, err := handler.Lock(q.context(), c)
		return err == nil && held
	}, patience, time.Millisecond)
	late.straggle()
	second, err := rival.Lock(q.context(), claim("k", time.Minute))
	require.NoError(t, err)
	require.False(t, second, "two hold")
}
