package postgrestest

import "syscall"

// dieWithParent has the kernel kill the server when the test process dies, however it dies. The server's own children
// end when they see that it is gone.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
