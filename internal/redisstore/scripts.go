package redisstore

import (
	"context"
	"crypto/sha1"
	_ "embed" // the scripts
	"encoding/hex"

	"github.com/redis/go-redis/v9"
)

// The scripts, one an operation. Each is one command to the server; claim.lua is what they share.
var (
	//go:embed lua/claim.lua
	claimLua string
	//go:embed lua/grant.lua
	grantLua string
	//go:embed lua/release.lua
	releaseLua string
	//go:embed lua/extend.lua
	extendLua string
	//go:embed lua/inspect.lua
	inspectLua string
	//go:embed lua/fence.lua
	fenceLua string

	grantScript   = newScript(grantLua)
	releaseScript = newScript(releaseLua)
	extendScript  = newScript(extendLua)
	inspectScript = newScript(inspectLua)
	fenceScript   = newScript(fenceLua)
)

// script is a script's text and the digest by which a server that has it knows it. [redis.Script] would do as well, but
// asks a client for six methods.
type script struct{ text, digest string }

func newScript(text string) script {
	text = claimLua + "\n" + text
	sum := sha1.Sum([]byte(text)) // what EVALSHA asks for; nobody's secret
	return script{text: text, digest: hex.EncodeToString(sum[:])}
}

// run sends the digest, and the text only if the server does not know it: a server forgets its scripts when it
// restarts, on SCRIPT FLUSH, and a promoted replica may never have had them.
func (s script) run(ctx context.Context, client Client, keys []string, args ...any) *redis.Cmd {
	cmd := client.EvalSha(ctx, s.digest, keys, args...)
	if redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		return client.Eval(ctx, s.text, keys, args...)
	}
	return cmd
}
