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
	//go:embed lua/extending.lua
	extendingLua string
	//go:embed lua/extend.lua
	extendLua string
	//go:embed lua/extend_all.lua
	extendAllLua string
	//go:embed lua/inspect.lua
	inspectLua string
	//go:embed lua/fence.lua
	fenceLua string
	//go:embed lua/check.lua
	checkLua string
)

// scripts are those that wake with one command.
type scripts struct{ grant, release, extend, extendAll, inspect, fence, check script }

// PUBLISH is for one server, and SPUBLISH for a cluster.
var publishing, publishingInShard = newScripts("PUBLISH"), newScripts("SPUBLISH")

func newScripts(waking string) *scripts {
	waking = "local waking = '" + waking + "'" // no argument: each costs the server time
	return &scripts{
		grant:     newScript(waking, grantFirstLua, claimLua, grantLua),
		release:   newScript(waking, releaseFirstLua, claimLua, releaseLua),
		extend:    newScript(waking, extendFirstLua, claimLua, extendingLua, extendLua),
		extendAll: newScript(waking, claimLua, extendingLua, extendAllLua),
		inspect:   newScript(waking, claimLua, inspectLua),
		fence:     newScript(waking, claimLua, fenceLua),
		check:     newScript(waking, claimLua, checkLua),
	}
}

// script is a script's text and the digest by which a server that has it knows it. [redis.Script] would do as well, but
// asks a client for six methods. Both are strings in the form in which a command wants them.
type script struct{ text, digest any }

func newScript(parts ...string) script {
	text := strings.Join(parts, "\n")
	sum := sha1.Sum([]byte(text)) // what EVALSHA asks for; nobody's secret
	return script{text: text, digest: hex.EncodeToString(sum[:])}
}
