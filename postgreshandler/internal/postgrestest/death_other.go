//go:build !linux

package postgrestest

import "syscall"

// dieWithParent has no counterpart here: a server outlives a test process that was killed hard.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
