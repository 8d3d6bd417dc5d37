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

// planted are bugs as somebody might write them: the text in the file of the real code, and what it is replaced with.
var planted = []struct {
	bug      string
	mode     simulation.Mode
	file     string
	old, new string
	schedule int // how many it may take to find it
}{
	{"the window is counted from the reply", simulation.Async, "record.go",
		"windowEnd(a.sent, a.expiry)", "windowEnd(time.Now(), a.expiry)", 1000},
	{"the window does not close by itself", simulation.Alone, "lease.go",
		"time.AfterFunc(ls.end.Sub(now), ls.checkWindow)", "time.AfterFunc(1<<62, ls.checkWindow)", 300},
	{"a no from the primary is a yes", simulation.Alone, "failover.go",
		"refused := a.err == nil && !a.Held", "refused := false", 300},
	{"an outage looks like busy", simulation.Alone, "failover.go",
		"return nil, &notAcquiredError{key: r.key, why: noStore, errs: a.err, unavailable: true}\n\t}\n\treturn l", "return nil, &BusyError{Key: r.key}\n\t}\n\treturn l", 300},
	{"a claim of unknown outcome is not taken back", simulation.Alone, "release.go",
		"case !primary.may:", "case !primary.may || primary.open():", 1000},
	{"a claim of unknown outcome is taken back once", simulation.Alone, "pending.go",
		"\tdefault:\n\t\tp.later()\n", "\tdefault:\n", 1000},
	{"a first attempt that was not answered is forgotten", simulation.Alone, "record.go",
		"if !a.records || !a.unknown() {", "if !a.records || a.err == nil {", 1000},
	{"a first attempt that was not answered is forgotten when the second is refused", simulation.Alone, "failover.go",
		"if refused && !a.unknown() {", "if refused {", 1000},
	{"what a release found is kept quiet", simulation.Async, "release.go",
		"ls.wasLost(primaryName)", "_ = ls", 1000},
	{"a release looks for the row when another may have replaced it", simulation.Sync, "release.go",
		"rowFirst := row != nil && lives == secondaryName", "rowFirst := false", 1000},
	{"a release that was sent twice is believed", simulation.Async, "pending.go",
		"case a.repeated || p.tried ||", "case p.tried ||", 1000},
	{"a lost lock is not released", simulation.Async, "lease.go",
		"\t\tls.locker.settleLater(ls)\n\t}\n}\n\n// finish", "\t\tclose(ls.settled)\n\t\tls.locker.background.add(-1)\n\t}\n}\n\n// finish", 1000},
	{"who lost the lock is not told", simulation.Async, "loki.go",
		"err = lost.withFnError(err)", "_ = lost", 1000},
	{"a conflict is ignored", simulation.Async, "mirror.go",
		"conflict = time.Since(st.refused) >= st.bears", "conflict = false", 1000},
	{"the mirror overwrites a row", simulation.Sync, "memhandler/handler.go",
		"r.claim.Token != c.Supersedes:", "r.claim.Token != c.Supersedes && c.Fence == 0:", 1000},
	{"a release overtakes its lock", simulation.Async, "mirror.go",
		"l.mirror.enqueue(ls.claim.Key, &mirrorJob{background: !waited", "l.mirror.enqueue(ls.claim.Key+\"release\", &mirrorJob{background: !waited", 1000},
	{"a mirror write is forgotten while it is under way", simulation.Async, "mirror.go",
		"ls.secondary.may = true", "", 1000},
	{"the row outlives its key", simulation.Async, "mirror.go",
		"ends := ls.confirmed.Add(c.Expiry)", "ends := time.Now().Add(c.Expiry)", 300},
	{"nothing needs the row", simulation.Sync, "failover.go",
		"case a.err != nil && !rowDecides:", "case a.err != nil:", 1000},
	{"the row is not renewed", simulation.Sync, "renewal.go",
		"case l.mode == MirrorSync:", "case false:", 1000},
	{"a waiter looks once", simulation.Alone, "wait.go",
		"poll.Reset(jitter.Around(pause))\n\t\t\tpause = min", "pause = min", 300},
	{"the first mirror write is that of a renewal", simulation.Async, "failover.go",
		"\tif due {\n\t\tl.mirrorWrite(ls)", "\tif due && false {\n\t\tl.mirrorWrite(ls)", 300},
	{"a renewal is not mirrored", simulation.Async, "renewal.go",
		"\t\tl.mirrorWrite(ls)\n\t\treturn confirmedBy", "\t\treturn confirmedBy", 300},
	{"the breaker never closes", simulation.Async, "health.go",
		"if len(h.failing) == 0 || h.ended {", "if true {", 300},
}

// found is what the breach says by which a bug is found, where another law may find the bug as well.
var found = map[string]string{
	"a waiter looks once":                         "which nobody held since",
	"the first mirror write is that of a renewal": "had no record of it until",
	"a renewal is not mirrored":                   "had no record of it from",
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
				"-run", "^TestSimulation_"+mode+"$", ".", fmt.Sprint("-loki.schedules=", p.schedule), "-loki.law="+found[p.bug]).CombinedOutput()
			require.Error(t, err, "the simulation found nothing:\n%s", out)
			require.Contains(t, string(out), "breaks a promise", "it failed for another reason:\n%s", out)
			_, told, _ := strings.Cut(string(out), "the schedule of ")
			told, _, _ = strings.Cut(told, "\nThe shortest")
			t.Log(told)
		})
	}
}
