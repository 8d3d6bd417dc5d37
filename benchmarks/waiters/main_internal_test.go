package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-"+workerAddr { // a worker of the test below
		main()
		return
	}
	os.Exit(m.Run())
}

func TestCurve(t *testing.T) {
	var out bytes.Buffer
	if err := curve(&out, 200*time.Millisecond, 10); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 5 { // the header; 1 and 10 waiters in one process, 10 in two and in four
		t.Errorf("%d lines:\n%s", len(lines), out.String())
	}
	for _, line := range lines[1:] {
		if strings.Fields(line)[2] == "0" {
			t.Errorf("no hand-over at all: %q", line)
		}
	}
}
