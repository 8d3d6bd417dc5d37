package redisstore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
)

func TestParseHolder_TakesNothingElseForAClaim(t *testing.T) {
	own, lokiNet := naming{}, naming{lokiNet: true}
	want := loki.Holder{ID: "host, process 1 ", Since: time.UnixMilli(3), Until: time.UnixMilli(1005), Left: 6 * time.Millisecond}
	for _, n := range []naming{own, lokiNet} {
		holder, owner, err := n.parseHolder("t 2 3 host, process 1 ", int64(5), 1_000_999)
		require.NoError(t, err)
		require.Equal(t, want, holder)
		require.Equal(t, "t", owner)
	}
	holder, _, err := own.parseHolder("t 2 3 ", int64(-1), 1)
	require.NoError(t, err)
	require.Equal(t, loki.Holder{Since: time.UnixMilli(3)}, holder, "it has no name and no expiry")
	for _, value := range []string{"", " ", "t", "t 2", "t 2 3", " 2 3 h", "t x 3 h", "t 2 x h", "t -2 3 h", "t +2 3 h", "t  3 h", "t 2  h"} {
		_, _, err := own.parseHolder(value, int64(5), 1)
		require.Equal(t, errForeign, err, "%q", value)
		holder, owner, err := lokiNet.parseHolder(value, int64(5), 1)
		require.NoError(t, err)
		require.Equal(t, unknownHolder, holder.ID, "%q", value)
		require.Equal(t, value, owner)
	}
}

func TestParseReleased(t *testing.T) {
	for value, want := range map[string]string{"": "", "12": "", "12 999 t": "", "12 1000 t": "", "12 1001 t": "t"} {
		token, err := parseReleased(value, 1_000_999)
		require.NoError(t, err, "%q", value)
		require.Equal(t, want, token, "%q", value)
	}
	for _, value := range []string{"x", " ", "12 ", "12 1001", "12 1001 ", "12 x t", "12 1001 t u", "-12", "12 -1001 t"} {
		_, err := parseReleased(value, 1)
		require.Equal(t, errForeign, err, "%q", value)
	}
}
