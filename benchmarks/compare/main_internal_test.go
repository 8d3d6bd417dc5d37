package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if config := os.Getenv(workerVar); config != "" { // a worker of the test below
		exit(workerMain(config))
	}
	os.Exit(m.Run())
}

// Everything is done once, by everybody.
func TestShort(t *testing.T) {
	dir := t.TempDir()
	report := filepath.Join(dir, "RESULTS.md")
	var out, log bytes.Buffer
	if err := run(t.Context(), []string{"-short", "-results", dir, "-report", report}, &out, &log); err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	if missing := "not measured"; strings.Contains(string(text), missing) {
		t.Errorf("something was %s:\n%s", missing, text)
	}
	for _, l := range lines {
		if !strings.Contains(string(text), l.title) {
			t.Errorf("the report has no row %q", l.title)
		}
	}
	for _, l := range slices.Concat(ownLines, leaseLines(short.leases[1])) {
		if !strings.Contains(string(text), l.title) {
			t.Errorf("the report has no row %q", l.title)
		}
	}
	for _, name := range append(names, primaryOnly, secondaryOnly) {
		lines, err := os.ReadFile(filepath.Join(dir, name+".txt"))
		if err != nil || !bytes.Contains(lines, []byte("\nBenchmark")) {
			t.Errorf("%s has no benchmarks for benchstat: %v\n%s", name, err, lines)
		}
	}
	for _, name := range []string{"handover.svg", "leases.svg"} {
		if picture, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Contains(picture, []byte("<svg")) {
			t.Errorf("%s is no picture: %v", name, err)
		}
	}
}
