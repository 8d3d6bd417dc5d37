//go:build !linux

package main

import "syscall"

// dieWithParent has no counterpart here: a server outlives a process that was killed hard.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
