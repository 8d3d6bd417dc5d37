package sqlhandler

// What the tests of package sqlhandler_test need.
const (
	ColdTime    = coldTime
	MaxDeaf     = maxDeaf
	LoginLinger = loginLinger
)
