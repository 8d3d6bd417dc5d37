package simulation_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/simulation"
)

// planted are bugs as somebody might write them: the text in the file of the real code, what it is replaced with, and what
// the breach says by which the bug is found.
var planted = []struct {
	bug      string
	mode     simulation.Mode
	file     string
	old, new string
	schedule int // how many it may take to find it
	law      string
}{
	{"the validity is counted from the reply", simulation.Async, "record.go",
		"r.validUntil = a.sent.Add(", "r.validUntil = now.Add(", 1000, "ran on until"},
	{"a lease does not end by itself", simulation.Alone, "lease.go",
		"\tat := ls.valid()\n", "\tat := ls.valid().Add(time.Hour)\n", 300, "ran on until"},
	{"a no from a store is a yes", simulation.Alone, "call.go",
		"\t\ta.Grant = answered.grant\n", "\t\ta.Grant = answered.grant\n\t\ta.Held = true\n", 300, "ran at once"},
	{"an outage looks like busy", simulation.Alone, "alone.go",
		"&notAcquiredError{key: r.key, why: noStore, errs: a.err, unavailable: true}", "&BusyError{Key: r.key}", 300, "was told busy"},
	{"a claim of unknown outcome is not rolled back", simulation.Alone, "lease.go",
		"if !ls.primary.sent && !ls.secondary.sent {", "if !ls.primary.stands && !ls.secondary.stands {", 1000, "left a claim"},
	{"a claim of unknown outcome is rolled back once", simulation.Alone, "record.go",
		"(!over || r.inFlight > 0 || !lands.After(now))", "(!over || r.inFlight > 0 || lands.After(time.Time{}))", 1000, "left a claim"},
	{"an abandoned call is not followed", simulation.Alone, "lease_records.go",
		"\tls.mu.Unlock()\n\ts.background.follow(ls, a)\n", "\tls.mu.Unlock()\n", 1000, "left a claim"},
	{"an abandoned call is forgotten when the store refuses", simulation.Alone, "alone.go",
		"\t\treturn nil, m.rollBack(ls, err)\n", "\t\treturn nil, err\n", 1000, "left a claim"},
	{"what a release found is kept quiet", simulation.Async, "async.go",
		"ls.wasLost(Primary)", "_ = ls", 1000, "was not told that no store held"},
	{"a release misses a record that the next holder has replaced", simulation.Sync, "async.go",
		"\tfound := l.secondary.background.releaseNow(ls)\n", "\tls.releasedInSecondary()\n\tl.primary.background.releaseNow(ls)\n\tfound := l.secondary.background.releaseNow(ls)\n", 1000, "was told that its lock was not held"},
	{"a release that was sent twice is believed", simulation.Async, "lease_records.go",
		"case a.repeated || r.replaced || !time.Now()", "case r.replaced || !time.Now()", 1000, "was told that its lock was not held"},
	{"a lost lock is not released", simulation.Async, "lease.go",
		"if ended {\n\t\tgo", "if ended {\n\t\tls.mu.Lock()\n\t\tls.primary.sent, ls.secondary.sent = false, false\n\t\tls.mu.Unlock()\n\t\tgo", 1000, "left a claim"},
	{"who lost the lock is not told", simulation.Async, "loki.go",
		"err = lost.withFnError(err)", "_ = lost", 1000, "lost its lock, and the error is"},
	{"a conflict is ignored", simulation.Async, "lease_records.go",
		"conflict = ls.outlastsGrace(b.HeldBy, now)", "_ = ls.outlastsGrace(b.HeldBy, now)", 1000, ""},
	{"the mirror overwrites a record", simulation.Sync, "memhandler/handler.go",
		"r.claim.Token != c.Supersedes:", "r.claim.Token != c.Supersedes && c.Fence == 0:", 1000, ""},
	{"a release overtakes its lock", simulation.Async, "lease_records.go",
		"return ls.record(s.name).attempted", "return ls.over || ls.record(s.name).attempted", 1000, "sent the secondary a release"},
	{"a mirror write is forgotten when it was sent", simulation.Async, "lease_records.go",
		"\t\t\tr.sent = true // before it leaves", "\t\t\t_ = r // before it leaves", 1000, "left a claim"},
	{"a record outlives its key", simulation.Async, "reconcile.go",
		"w.s.lock(ctx, c, q.end, left)", "w.s.lock(ctx, c, time.Time{}, left)", 300, "asked for a record"},
	{"nothing needs the secondary", simulation.Sync, "sync.go",
		"\tcase b.err == nil && b.Held:\n", "\tcase b.err != nil:\n\t\treturn m.startBy(ls, Primary, a)\n\tcase b.Held:\n", 1000, "ran on until"},
	{"the secondary's record is not renewed", simulation.Sync, "sync.go",
		"\tb := m.renewInSecondary(ctx, ls)\n", "\tb := a\n\tls.answered(m.secondary, a)\n", 1000, "ran on until"},
	{"the breaker never closes", simulation.Async, "health.go",
		"\t\t\tdelete(h.failing, key)\n", "", 300, "although all was well"},

	{"a waiter looks once", simulation.Alone, "wait.go",
		"poll.Reset(retry.Around(pause))\n\t\t\tpause = min", "pause = min", 2000, ""},
	{"the first mirror write is that of a renewal", simulation.Async, "async.go",
		"m.secondary.background.changed(ls) // its mirror write is due", "_ = ls", 300, "had no record of it until"},
	{"first mirror writes wait behind renewals", simulation.Async, "lease_records.go",
		"\tcase do != stepNone && !over && !r.stands:\n\t\treturn classFirst, at, false\n", "", 1000, "had no record of it until"},
	{"a renewal is not mirrored", simulation.Async, "lease.go",
		"if ls.locker.secondary != nil && (r.by == Primary || fellBack) {", "if false {", 300, "had no record of it from"},
	{"silence after a refusal is agreement", simulation.Async, "async.go",
		"case suspicion.degree == refusedKey:", "case false:", 1000, "has named another holder"},
	{"a refusal marks no key", simulation.Async, "mode.go",
		"\t\tl.suspects.refused(key, a)\n", "", 1000, "has named another holder"},
	{"the refusal of a mirror write marks no key", simulation.Async, "mode.go",
		"\tdefault:\n\t\tl.suspects.refused(key, a)\n", "", 1000, "has named another holder"},
	{"the first refusal is a conflict when fn returns", simulation.Async, "lease.go",
		"timer := time.NewTimer(time.Until(r.since.Add(r.grace)) + lastAnswer)", "_ = lastAnswer\n\ttimer := time.NewTimer(0)", 300, "was told that it lost its lock"},
	{"an attempt on the caller's goroutine is taken for not sent", simulation.Alone, "call.go",
		"returned: isReturned, err: err}", "returned: isReturned, err: NotSent(err)}", 1000, "left a claim"},
	{"a batch has one answer", simulation.Async, "batch.go",
		"= answers[i].Held, answers[i].Err", "= answers[0].Held, answers[i].Err", 1000, ""},
	{"a late renewal changes a minimum hold", simulation.Alone, "record.go",
		"r.agreed, r.retry = false, time.Time{}", "r.retry = time.Time{}", 4000, ""},
	{"a minimum hold is not mirrored", simulation.Async, "lease.go",
		"\tcase ls.over:\n\t\treturn ls.hold, true\n", "\tcase ls.over && s == Secondary:\n\t\treturn time.Time{}, true\n\tcase ls.over:\n\t\treturn ls.hold, true\n", 300, "its minimum hold"},
	{"a handler's time is over with its caller's", simulation.Alone, "call.go",
		"const linger = 5 * time.Second", "const linger = 0", 300, "nobody ran"},
	{"a key is suspect for ever", simulation.Async, "suspect.go",
		"s.all = later(s.all, time.Now().Add(longest))", "s.all = later(s.all, time.Now().Add(1000*longest))", 300, "because the secondary hangs"},
	{"an occurrence is not looked up", simulation.Sync, "occurrence.go",
		"\t\tcase a.err == nil && a.Held:\n\t\t\treturn &doneError{key: o.record, holder: a.HeldBy}\n", "", 300, "ran occurrence"},
	{"a failed run counts as done", simulation.Alone, "loki.go",
		"if err == nil && c.occurrence.record != \"\" {\n\t\tl.complete", "if c.occurrence.record != \"\" {\n\t\tl.complete", 300, "was done, and nobody had done it"},
	{"a failed run keeps its lock", simulation.Alone, "loki.go",
		"if err == nil && c.occurrence.record != \"\" {\n\t\tl.complete", "if err != nil {\n\t\tls.keepUntil(time.Now().Add(ls.claim.Expiry))\n\t}\n\tif err == nil && c.occurrence.record != \"\" {\n\t\tl.complete", 300, "has returned and left its claim"},
}

// TestSimulation_HasTeeth builds the real code with one bug at a time and sees the simulation find it.
func TestSimulation_HasTeeth(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	for _, p := range planted {
		t.Run(p.bug, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(root, p.file)
			code, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, 1, strings.Count(string(code), p.old), "%s has moved on: plant the bug anew", p.file)
			dir := t.TempDir()
			buggy := filepath.Join(dir, "buggy.go")
			require.NoError(t, os.WriteFile(buggy, []byte(strings.Replace(string(code), p.old, p.new, 1)), 0o600))
			overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{file: buggy}})
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))

			mode := strings.ToUpper(string(p.mode[:1])) + string(p.mode[1:])
			out, err := exec.CommandContext(t.Context(), "go", "test", "-overlay", filepath.Join(dir, "overlay.json"), "-count=1", "-vet=off",
				"-run", "^TestSimulation_"+mode+"$", ".", fmt.Sprint("-loki.schedules=", p.schedule), "-loki.law="+p.law).CombinedOutput()
			require.Error(t, err, "the simulation found nothing:\n%s", out)
			require.Contains(t, string(out), "breaks a promise", "it failed for another reason:\n%s", out)
			_, told, _ := strings.Cut(string(out), "the schedule of ")
			told, _, _ = strings.Cut(told, "\nThe shortest")
			t.Log(told)
		})
	}
}
