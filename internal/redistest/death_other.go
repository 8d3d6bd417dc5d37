//go:build !linux

package redistest

import "syscall"

// dieWithParent has no counterpart here: a server outlives a test process that was killed hard.
func dieWithParent() *syscall.SysProcAttr { return nil }
