package loki

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Answers come late and out of order. What was sent before a refusal was heard neither ends its suspicion nor shortens it.
func TestSuspects_HearLateAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s suspects
		early := time.Now()
		refusal := func(sent time.Time, left time.Duration) answer {
			return answer{sent: sent, Grant: Grant{HeldBy: Holder{ID: "other", Left: left}}}
		}
		time.Sleep(time.Second)
		s.refused("job", refusal(time.Now(), time.Minute))
		until := s.of("job").until
		require.Equal(t, time.Now().Add(time.Minute), until)

		time.Sleep(time.Second)
		s.refused("job", refusal(early, time.Second))
		require.Equal(t, until, s.of("job").until, "a late refusal shortened it")
		s.granted("job", answer{sent: early})
		require.Equal(t, refusedKey, s.of("job").degree, "a late grant ended it")

		time.Sleep(time.Second)
		s.refused("job", refusal(time.Now(), time.Second))
		require.Equal(t, time.Now().Add(time.Second), s.of("job").until, "the holder has changed")
		time.Sleep(time.Millisecond)
		s.granted("job", answer{sent: time.Now()})
		require.Equal(t, trustedKey, s.of("job").degree)
	})
}
