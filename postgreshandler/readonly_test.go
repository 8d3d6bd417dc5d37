package postgreshandler_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/postgreshandler"
	"github.com/lokilock/loki/postgreshandler/internal/postgrestest"
	"github.com/lokilock/loki/postgreshandler/migrations"
)

// At run time a server that only reads is one that has failed over. At the start of a service it is the wrong one.
//
// https://github.com/vgarvardt/gue/issues/202, https://github.com/timgit/pg-boss/issues/209
func TestCheckFindsWhatOnlyReads(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	s := newStoreOn(t, server)
	require.NoError(t, postgreshandler.Check(t.Context(), s.db, s.opts...))

	session := s.open(t, "default_transaction_read_only=on")
	err := postgreshandler.Check(t.Context(), session.db, s.opts...)
	require.ErrorContains(t, err, "default_transaction_read_only is on")
	require.False(t, loki.IsUnavailable(err))
	_, err = session.Lock(t.Context(), s.Claim("k"))
	require.True(t, loki.IsUnavailable(err), "%v", err)
	require.ErrorContains(t, err, "this session only reads: connect to the primary")
	require.ErrorContains(t, err, "target_session_attrs=read-write")
	require.ErrorContains(t, migrations.Apply(t.Context(), session.db), "making fit \"public\".\"loki_lockings\": the server is a hot standby, or this session only reads")

	server.Standby(t)
	standby := s.open(t)
	err = postgreshandler.Check(t.Context(), standby.db, s.opts...)
	require.ErrorContains(t, err, "hot standby")
	require.ErrorContains(t, err, "target_session_attrs=read-write")
	require.False(t, loki.IsUnavailable(err))
	_, err = standby.Lock(t.Context(), s.Claim("k"))
	require.ErrorContains(t, err, "target_session_attrs=read-write")
	require.True(t, loki.IsUnavailable(err), "%v", err)
	err = postgreshandler.Check(t.Context(), s.open(t, "target_session_attrs=read-write").db, s.opts...)
	require.True(t, loki.IsUnavailable(err), "%v", err)
}
