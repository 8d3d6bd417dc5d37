package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestALateWriteIsRefused(t *testing.T) {
	require.NoError(t, run(t.Context()))
}
