package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonic is the one clock of a proof. The monotonic part of a time.Time is the same clock, but does not leave its
// process.
func monotonic() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // it cannot fail with these arguments
	}
	return time.Duration(t.Nano())
}
