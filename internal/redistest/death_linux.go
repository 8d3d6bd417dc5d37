package redistest

import "syscall"

// dieWithParent has the kernel kill the server when the test process dies, however it dies.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
