package mssqlhandler_test

import (
	"testing"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/lokitest"
)

func TestConformance(t *testing.T) {
	s := newStore(t)
	s.warm(t)
	lokitest.Run(t, func(*testing.T) loki.LockHandler { return s.Handler })
}
