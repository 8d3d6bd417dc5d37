package sqlhandler_test

// This file is about the calls of a store that are none of the statements.

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/sqlhandler"
)

func TestDoTreatsACallAsTheStatementsAre(t *testing.T) {
	h, s := newStub(t, nil)
	calls := 0
	do := func(key string, errs ...error) error {
		calls = 0
		return sqlhandler.Do(t.Context(), h, "notify", key, func() error {
			calls++
			if calls <= len(errs) {
				return errs[calls-1]
			}
			return nil
		})
	}
	require.NoError(t, do("k"))
	require.NoError(t, do("k", errLost), "it is repeated")
	require.Equal(t, 2, calls)
	err := do("k", errDown, errDown)
	require.True(t, loki.IsUnavailable(err))
	require.ErrorContains(t, err, `stubhandler: notify of "k" in "locks": wait`)
	require.Equal(t, 1, calls)
	err = do("k", errNoRights)
	require.False(t, loki.IsUnavailable(err))
	require.ErrorIs(t, err, errNoRights)
	require.ErrorContains(t, do(""), "no key")
	require.Zero(t, calls, "a key that cannot be is not asked about")

	ctx, cancel := context.WithCancel(t.Context())
	require.ErrorIs(t, sqlhandler.Do(ctx, h, "notify", "k", func() error { cancel(); return errBroken }), context.Canceled)
	require.Empty(t, s.sent())

	require.ErrorContains(t, sqlhandler.Do(t.Context(), nil, "notify", "k", func() error { return nil }), "not made by New")
}
