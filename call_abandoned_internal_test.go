package loki

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The end of a call that lingered, and was cancelled for newer ones, does not undo the count of a later abandoned call.
func TestAbandonedCalls_TheEndOfOneThatLingeredKeepsTheCount(t *testing.T) {
	var c abandonedCalls
	var ends []func()
	for range maxLingering + 1 {
		ends = append(ends, c.lingers("job", func() {}))
	}
	cancelled := ends[1]
	for _, end := range slices.Delete(ends, 1, 2) {
		end()
	}
	c.add("job", 1)
	cancelled()
	require.NotNil(t, c.keys["job"], "the abandoned call is not counted any more")
	c.add("job", -1)
	require.Empty(t, c.keys)
}

// Of many calls that linger the oldest goes on, whose connection is ready first, and so does the latest.
func TestAbandonedCalls_TheOldestAndTheLatestLinger(t *testing.T) {
	var c abandonedCalls
	var cancelled []int
	for i := range 5 {
		c.lingers("job", func() { cancelled = append(cancelled, i) })
	}
	require.Equal(t, []int{1, 2, 3}, cancelled)
}

// A lock that is held is not lost, and not left behind, because a store hangs for the acquisitions of others.
func TestAbandonedCalls_OfManyKeysKeepNoRenewalAndNoReleaseBack(t *testing.T) {
	var c abandonedCalls
	c.add("job", 1)
	c.add("others", manyAbandoned)
	for op, refused := range map[Op]bool{OpLock: true, OpInspect: true, OpExtend: false, OpRelease: false} {
		require.Equal(t, refused, c.refusal(op, "job") != nil, op)
		require.NoError(t, c.refusal(op, "new"), op)
		require.Error(t, c.refusal(op, "others"), op)
	}
}
