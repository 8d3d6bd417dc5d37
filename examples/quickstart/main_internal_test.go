package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
)

// The test binary is also the program, so that its exit code can be seen.
const asProgram = "QUICKSTART_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func program(t *testing.T) (cmd *exec.Cmd, out, errOut *bytes.Buffer) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), asProgram+"=1")
	out, errOut = &bytes.Buffer{}, &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, errOut
	return cmd, out, errOut
}

func TestTheStoryIsToldToItsEnd(t *testing.T) {
	t.Parallel()
	cmd, out, errOut := program(t)
	start := time.Now()
	require.NoError(t, cmd.Run(), "%s%s", out, errOut)
	require.Less(t, time.Since(start), 15*time.Second)
	require.Empty(t, errOut.String(), "noise")

	story := out.String()
	require.Equal(t, 3, strings.Count(story, "has the lock and runs the job"), story)
	require.Len(t, regexp.MustCompile(`(?m) skips: (Anna|Ben|Carl|another worker) is on it$`).FindAllString(story, -1), 6, story)
	require.Regexp(t, `(?s)Redis +goes down.*still holds the lock: the secondary has renewed it.*tries again and skips.*it was not interrupted`, story)
	require.Regexp(t, `(?s)still down.*came from the secondary.*Redis is back.*came from the primary.*No lock is left behind`, story)
}

func TestAStoryThatIsCutShortIsAFailure(t *testing.T) {
	t.Parallel()
	cmd, out, errOut := program(t)
	read, write, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdout = write
	require.NoError(t, cmd.Start())
	require.NoError(t, write.Close())
	_, err = read.Read(make([]byte, 1)) // the story has begun, so the signal is being watched
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	_, err = out.ReadFrom(read)
	require.NoError(t, err)

	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit, "%s%s", out, errOut)
	require.Equal(t, 1, exit.ExitCode(), "%s%s", out, errOut)
	require.Contains(t, errOut.String(), "quickstart: ")
}

func TestARoundThatWentWrongIsNoticed(t *testing.T) {
	anna, ben := &worker{name: "Anna"}, &worker{name: "Ben"}
	ran := func(w *worker, store string, err error) try {
		return try{worker: w, outcome: loki.Outcome{Ran: true, Store: loki.Store(store)}, err: err}
	}
	skipped := func(w *worker, holder string) try {
		return try{worker: w, err: &loki.BusyError{Holder: loki.Holder{ID: holder}}}
	}
	require.NoError(t, check([]try{ran(anna, "primary", nil), skipped(ben, "Anna")}, "primary"))

	for what, tries := range map[string][]try{
		"2 workers ran":             {ran(anna, "primary", nil), ran(ben, "primary", nil)},
		"0 workers ran":             {skipped(anna, "Ben"), skipped(ben, "Anna")},
		"Ben should have been":      {ran(anna, "primary", nil), skipped(ben, "Carl")},
		"because of Anna":           {ran(anna, "primary", nil), {worker: ben, err: loki.ErrUnavailable}},
		"instead of the primary":    {ran(anna, "secondary", nil), skipped(ben, "Anna")},
		"Anna failed: out of paper": {ran(anna, "primary", errors.New("out of paper")), skipped(ben, "Anna")},
	} {
		require.ErrorContains(t, check(tries, "primary"), what)
	}
}
