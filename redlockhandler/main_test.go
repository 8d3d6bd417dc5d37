package redlockhandler_test

import (
	"flag"
	"os"
	"testing"
)

// atOnce is how many tests run at once if nobody says how many: most of them wait for an expiry or a failover.
const atOnce = "6"

func TestMain(m *testing.M) {
	flag.Parse()
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "test.parallel" })
	if !asked {
		_ = flag.Set("test.parallel", atOnce)
	}
	os.Exit(m.Run())
}
