package redisstore

import (
	"crypto/sha1"
	_ "embed" // the scripts
	"encoding/hex"
	"strings"
)

// The scripts, one an operation. Each is one command to the server; claim.lua is what they share, and what has "first" in
// its name decides the common case in a fraction of the time.
var (
	//go:embed lua/claim.lua
	claimLua string
	//go:embed lua/grant_first.lua
	grantFirstLua string
	//go:embed lua/grant.lua
	grantLua string
	//go:embed lua/release_first.lua
	releaseFirstLua string
	//go:embed lua/release.lua
	releaseLua string
	//go:embed lua/extend_first.lua
	extendFirstLua string
	//go:embed lua/extend.lua
	extendLua string
	//go:embed lua/inspect.lua
	inspectLua string
	//go:embed lua/fence.lua
	fenceLua string

	grantScript   = newScript(grantFirstLua, claimLua, grantLua)
	releaseScript = newScript(releaseFirstLua, claimLua, releaseLua)
	extendScript  = newScript(extendFirstLua, claimLua, extendLua)
	inspectScript = newScript(claimLua, inspectLua)
	fenceScript   = newScript(claimLua, fenceLua)
)

// script is a script's text and the digest by which a server that has it knows it. [redis.Script] would do as well, but
// asks a client for six methods. Both are strings in the form in which a command wants them.
type script struct{ text, digest any }

func newScript(parts ...string) script {
	text := strings.Join(parts, "\n")
	sum := sha1.Sum([]byte(text)) // what EVALSHA asks for; nobody's secret
	return script{text: text, digest: hex.EncodeToString(sum[:])}
}
