package loki

import (
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
	for _, end := range ends[1:] {
		end()
	}
	c.add("job", 1)
	ends[0]()
	require.NotNil(t, c.keys["job"], "the abandoned call is not counted any more")
	c.add("job", -1)
	require.Empty(t, c.keys)
}
