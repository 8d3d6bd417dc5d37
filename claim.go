package loki

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"sync"
	"time"
)

// newClaim mints a claim.
func (l *Locker) newClaim(key string, expiry time.Duration) Claim {
	return Claim{Key: key, Token: newToken(), Expiry: expiry, Holder: l.holder}
}

// processName is what people see as the holder.
var processName = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%s (pid %d)", host, os.Getpid())
})

// newToken returns 128 random bits.
func newToken() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: it ends the process rather than return too little
	return hex.EncodeToString(b[:])
}
