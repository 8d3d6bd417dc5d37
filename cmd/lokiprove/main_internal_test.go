package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/cmd/lokiprove/referee"
)

// The test binary is also the workers that it starts.
func TestMain(m *testing.M) {
	if config := os.Getenv(workerConfig); config != "" {
		os.Exit(workerMain(config))
	}
	redis.SetLogger(silence{})
	os.Exit(m.Run())
}

// short is a proof that a test has time for. Its tail is five expiries.
func short(mode string, lossy bool) settings {
	return settings{length: 5 * time.Second, workers: 3, mode: mode, seed: 1, expiry: 500 * time.Millisecond, rate: 2, lossy: lossy}
}

func proved(t *testing.T, s settings, faults []fault) *referee.Verdict {
	t.Helper()
	s.svg = filepath.Join(t.TempDir(), "proof.svg")
	records, err := prove(t.Context(), t, s, faults, io.Discard)
	require.NoError(t, err)
	history, err := referee.New(records)
	require.NoError(t, err)
	v := referee.Judge(history)
	var told strings.Builder
	report(&told, v, s)
	t.Log(told.String())
	require.Empty(t, v.Breaches, "reproduced, perhaps, by -seed %d", s.seed)
	require.Greater(t, v.Runs, 2, "too few runs to prove anything")
	require.Len(t, history.Faults, len(faults))
	return v
}

func TestShortProofs(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]settings{
		"async": short(referee.Async, true), "sync": short(referee.Sync, true), "alone and lossy": short(referee.Alone, true),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proved(t, s, schedule(s))
		})
	}
}

func TestShortProofIsLinearizable(t *testing.T) {
	t.Parallel()
	s := short(referee.Alone, false)
	require.Equal(t, "linearizable", proved(t, s, schedule(s)).Linear)
}

func TestShortProofOfAQuorum(t *testing.T) {
	t.Parallel()
	s := of(3, short(referee.Alone, true))
	s.rate = 4
	v := proved(t, s, schedule(s))
	require.Empty(t, v.Overlaps)
	require.Equal(t, "linearizable", v.Linear)
}

// A network that forgets its connections and a pool that is full are no outage of a store: they cost no promise either.
func TestShortProofsOfDeadConnectionsAndFullPools(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]settings{
		"async": short(referee.Async, false), "sync": short(referee.Sync, false),
		"alone": short(referee.Alone, false), "quorum": of(3, short(referee.Alone, false)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.kinds, s.rate = []string{referee.Forget, referee.Full}, 6
			proved(t, s, schedule(s))
		})
	}
}

// Every kind of fault, one after the other, is made and is over again, or nobody would get the lock in the end.
func TestEveryKindOfFault(t *testing.T) {
	t.Parallel()
	for n, mode := range map[int]string{0: referee.Async, 3: referee.Sync} {
		t.Run(fmt.Sprint("quorum ", n), func(t *testing.T) {
			t.Parallel()
			s := of(n, short(mode, true))
			var faults []fault
			at := 200 * time.Millisecond
			for _, k := range kinds {
				if !s.possible(k) {
					continue
				}
				f := fault{id: len(faults) + 1, kind: k.kind, at: at, delay: 20 * time.Millisecond}
				f.end = at + max(150*time.Millisecond, s.least(f))
				if !k.everybody {
					f.worker = 1 + len(faults)%s.workers
				}
				switch {
				case k.link && len(faults)%2 == 1:
					f.store = referee.Secondary
				case n > 0 && (k.link || referee.MeetsServer(k.kind)):
					f.store = referee.Server(1 + len(faults)%n)
				case k.link:
					f.store = referee.Primary
				}
				faults = append(faults, f)
				at = f.end + 50*time.Millisecond
			}
			s.length = max(s.length, at+tail*s.expiry)
			proved(t, s, faults)
		})
	}
}

func TestShortProofOnSQLServer(t *testing.T) {
	s := short(referee.Sync, true)
	if s.mssql = os.Getenv("LOKI_TEST_MSSQL_DSN"); s.mssql == "" {
		t.Skip("LOKI_TEST_MSSQL_DSN is not set: there is no SQL Server to be the secondary")
	}
	t.Parallel()
	proved(t, s, schedule(s))
}

// judged is what the command exits with for a history that was written by hand, and what it printed.
func judged(t *testing.T, records ...referee.Record) (exit int, out, picture string) {
	t.Helper()
	dir := t.TempDir()
	history, svg := filepath.Join(dir, "history.jsonl"), filepath.Join(dir, "proof.svg")
	f, err := os.Create(history)
	require.NoError(t, err)
	for _, r := range records {
		require.NoError(t, json.NewEncoder(f).Encode(r))
	}
	require.NoError(t, f.Close())
	var told strings.Builder
	exit = run([]string{"-judge", history, "-svg", svg}, &told, &told)
	drawn, err := os.ReadFile(svg)
	require.NoError(t, err)
	return exit, told.String(), string(drawn)
}

func TestABrokenPromiseIsAnExitCode(t *testing.T) {
	began := referee.Record{What: referee.Began, Setting: &referee.Setting{Mode: referee.Sync, Expiry: time.Second, Workers: 2}}
	exit, out, _ := judged(t, began)
	require.Zero(t, exit, out)
	require.Contains(t, out, "KEPT:")

	exit, out, _ = judged(t, began, referee.Record{What: referee.Leftover, Store: referee.Primary, Text: "a key"})
	require.Equal(t, exitBroken, exit)
	require.Contains(t, out, "BROKEN leftover")
	require.Contains(t, out, "BROKEN: mode sync")
}

func TestAHistoryThatIsNone(t *testing.T) {
	name := filepath.Join(t.TempDir(), "history.jsonl")
	for content, wrong := range map[string]string{"": "does not begin with the setting", "{": "record 1 of the history is not readable"} {
		require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
		var told strings.Builder
		require.Equal(t, exitNoProof, run([]string{"-judge", name}, io.Discard, &told))
		require.Contains(t, told.String(), wrong)
	}
}

func TestMistakesInTheFlags(t *testing.T) {
	for args, wrong := range map[string]string{
		"-mode both":               "use async, sync or alone",
		"-workers 1":               "2 to 16",
		"-expiry 10ms":             "at least 200ms",
		"-faults-per-second -1":    "between 0 and 20",
		"-for 3s":                  "the last 5s are without faults",
		"-mode alone -mssql some":  "-mode alone has none",
		"-quorum 1":                "3, 5 or 7 servers",
		"-quorum 4":                "3, 5 or 7 servers",
		"-quorum -3":               "3, 5 or 7 servers",
		"-kinds flood":             `"flood" is no kind of fault`,
		"-quorum 3 -kinds promote": `"promote" is no kind of fault in this mode`,
		"sync":                     "is no flag",
		"-mode both -workers 1":    "2 to 16",
	} {
		_, err := parse(strings.Fields(args), io.Discard)
		require.ErrorContains(t, err, wrong, args)
	}
	s, err := parse(nil, io.Discard)
	require.NoError(t, err)
	require.NotZero(t, s.seed)
	require.Equal(t, "lokiprove.svg", filepath.Base(s.svg))
	require.NoError(t, os.RemoveAll(filepath.Dir(s.svg)))
}
