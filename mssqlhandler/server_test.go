package mssqlhandler_test

import (
	"testing"

	"github.com/lokilock/loki/internal/sqltest"
)

func TestServer(t *testing.T) {
	sqltest.Run(t, func(t *testing.T, ownPool bool) *sqltest.Store {
		if !ownPool {
			return newStore(t).Store
		}
		s := newStoreOn(t, open(t, "sqlserver"), "sqlserver")
		s.warm(t)
		return s.Store
	})
}
