package postgreshandler_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/postgreshandler"
)

// listen listens to key until stop is called.
func (s *store) listen(t *testing.T, key string) (told <-chan struct{}, stop context.CancelFunc) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	told, err := s.Notify(ctx, key)
	require.NoError(t, err)
	return told, stop
}

// requireTold waits for a value, and for no more than a slow machine needs.
func requireTold(t *testing.T, told <-chan struct{}) {
	t.Helper()
	select {
	case _, ok := <-told:
		require.True(t, ok, "the channel is closed")
	case <-time.After(20 * time.Second):
		t.Fatal("nobody was told")
	}
}

// ears are the sessions that listen for the store's table.
func (s *store) ears(t *testing.T) (n int) {
	t.Helper()
	s.get(t, &n, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%LISTEN%' || $1 || '%' AND pid <> pg_backend_pid()", s.schema)
	return n
}

func TestNotify_TellsOfReleaseAndShorterExpiry(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	told, _ := s.listen(t, "job")
	other, _ := s.listen(t, "another")

	c := s.Claim("job")
	s.MustGrant(t, c)
	s.MustRelease(t, c)
	requireTold(t, told)

	s.MustGrant(t, c)
	c.Expiry = 20 * time.Second
	s.MustExtend(t, c, true)
	requireTold(t, told)

	c.Expiry = 10 * time.Second
	s.MustGrant(t, c)
	requireTold(t, told)

	next := s.Claim("job")
	next.Supersedes, next.Expiry = c.Token, 5*time.Second
	s.MustGrant(t, next)
	requireTold(t, told)

	next.Expiry = time.Minute
	s.MustExtend(t, next, true)
	s.MustGrant(t, next)
	next.Quiet = true
	s.MustRelease(t, next)
	s.MustRelease(t, next) // of what is not held any more
	// What is sent after all those comes after it, if at all.
	loud := s.Claim("another")
	s.MustGrant(t, loud)
	s.MustRelease(t, loud)
	requireTold(t, other)
	require.Empty(t, told, "neither a longer expiry nor a quiet release wakes anybody, nor another lock's")
}

// All share one connection, none of the pool's, which is gone with the last of them.
func TestNotify_NothingIsLeft(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.db.SetMaxOpenConns(1)
	for round := range 3 {
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 50 {
			wg.Go(func() {
				if _, err := s.Notify(ctx, fmt.Sprint("job", i%25)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.Equal(t, 1, s.ears(t), "round %d", round)
		s.EveryOperation(t) // over the one connection that the pool may have
		cancel()
		require.Eventually(t, func() bool { return s.ears(t) == 0 }, 10*time.Second, 5*time.Millisecond)
	}
}

func TestNotify_ABrokenConnectionIsRestored(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	told, _ := s.listen(t, "job")
	s.exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%LISTEN%' || $1 || '%' AND pid <> pg_backend_pid()", s.schema)
	requireTold(t, told) // something may have been missed

	c := s.Claim("job")
	s.MustGrant(t, c)
	s.MustRelease(t, c)
	requireTold(t, told)
	require.Equal(t, 1, s.ears(t))
}

// A pool that has been closed will not be open again: there is nothing to wait for.
func TestNotify_AfterClose(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	h, err := postgreshandler.Open(s.server.DSN(), append(s.opts, postgreshandler.WithPatience(time.Minute, time.Second, 10*time.Minute))...)
	require.NoError(t, err)
	told, err := h.Notify(t.Context(), "job")
	require.NoError(t, err)
	require.NoError(t, h.Close())
	s.exec(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%LISTEN%' || $1 || '%' AND pid <> pg_backend_pid()", s.schema)
	select {
	case _, ok := <-told:
		require.False(t, ok, "there is nothing to tell")
	case <-time.After(20 * time.Second):
		t.Fatal("the channel stays open although the pool is closed")
	}
	_, err = h.Notify(t.Context(), "job")
	require.ErrorContains(t, err, "database is closed")
}

// A server that stays away is given up: the channels are closed, and whoever comes later listens anew.
func TestNotify_AServerThatStaysAway(t *testing.T) {
	server := doomedServer()
	s := newStoreOn(t, server, postgreshandler.WithPatience(time.Minute, time.Second, 500*time.Millisecond))
	told, _ := s.listen(t, "job")
	server.Kill()
	select {
	case _, ok := <-told:
		require.False(t, ok, "there is nothing to tell")
	case <-time.After(30 * time.Second):
		t.Fatal("the channel stays open although nothing can come any more")
	}
	_, err := s.Notify(within(t, 5*time.Second), "job")
	require.True(t, loki.IsUnavailable(err), "%v", err)
	server.Restart(t)
	told, _ = s.listen(t, "job")
	c := s.Claim("job")
	s.MustGrant(t, c)
	s.MustRelease(t, c)
	requireTold(t, told)
}

// A listener that leaves, as the last or not, must not take the next one's connection with it.
func TestNotify_ComingAndGoing(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for range 60 {
		_, leave := s.listen(t, "job")
		go leave()
		told, stop := s.listen(t, "job")
		c := s.Claim("job")
		s.MustGrant(t, c)
		s.MustRelease(t, c)
		requireTold(t, told)
		stop()
	}
}

func TestNotify_WhereNobodyCanListen(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	register()
	traced := s.openAs(t, "traced-pgx")
	_, err := traced.Notify(t.Context(), "job")
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "WithListenDSN")
	require.False(t, loki.IsUnavailable(err))

	direct := postgreshandler.New(traced.db, append(s.opts, postgreshandler.WithListenDSN(s.server.DSN()))...)
	told, err := direct.Notify(t.Context(), "job")
	require.NoError(t, err)
	c := s.Claim("job")
	traced.MustGrant(t, c)
	traced.MustRelease(t, c)
	requireTold(t, told)

	_, err = s.Notify(t.Context(), "\xff")
	require.ErrorContains(t, err, "not valid UTF-8")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Notify(ctx, "job")
	require.Equal(t, context.Canceled, err)
}

// Silence is no reason to give a connection up as long as there are signs of life, and a frozen server shows none.
func TestNotify_Silence(t *testing.T) {
	server := doomedServer()
	s := newStoreOn(t, server, postgreshandler.WithPatience(10*time.Millisecond, time.Second, time.Second))
	told, _ := s.listen(t, "job")
	var pid, later int
	const ear = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND application_name = ''"
	s.db.SetMaxOpenConns(1)
	s.get(t, &pid, ear)
	for signs := 0; signs < 3; { // of life: the session has been asked since
		var asked bool
		s.get(t, &asked, "SELECT query = '-- ping' AND state_change > clock_timestamp() - interval '50 milliseconds' FROM pg_stat_activity WHERE pid = $1", pid)
		if asked {
			signs++
		}
	}
	c := s.Claim("job")
	s.MustGrant(t, c)
	s.MustRelease(t, c)
	requireTold(t, told)
	s.get(t, &later, ear)
	require.Equal(t, pid, later, "it is the same connection")

	server.Stop(t)
	defer server.Cont(t)
	select {
	case _, ok := <-told:
		require.False(t, ok, "there is nothing to tell")
	case <-time.After(40 * time.Second):
		t.Fatal("the channel stays open although the server is frozen")
	}
}

func TestNotify_Without(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	silent := postgreshandler.New(s.db, append(s.opts, postgreshandler.WithoutNotify())...)
	_, err := silent.Notify(t.Context(), "job")
	require.ErrorIs(t, err, errors.ErrUnsupported)

	told, _ := s.listen(t, "job")
	other, _ := s.listen(t, "another")
	quiet, loud := s.Claim("job"), s.Claim("another")
	s.MustGrant(t, quiet)
	s.MustGrant(t, loud)
	require.NoError(t, silent.Release(t.Context(), quiet))
	s.MustRelease(t, loud)
	requireTold(t, other)
	require.Empty(t, told)
}
