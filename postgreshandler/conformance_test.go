package postgreshandler_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/postgreshandler"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	lokitest.Run(t, func(*testing.T) loki.LockHandler { return s.Handler })
}

func TestConformanceWithHistory(t *testing.T) {
	t.Parallel()
	s := newStore(t, postgreshandler.WithHistory(time.Hour))
	lokitest.Run(t, func(*testing.T) loki.LockHandler { return s.Handler })
	var runs int
	s.get(t, &runs, "SELECT count(*) FROM $H")
	require.Positive(t, runs)
}
