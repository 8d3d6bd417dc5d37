package redishandler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki"
)

// Codes, the first words of an error reply, with which a server says that it cannot answer now.
var unavailableCodes = []string{
	"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS", "MISCONF", "OOM", "BUSY",
	"UNBLOCKED",    // WAIT, when the server ceases to be a master
	"MOVED", "ASK", // a cluster client follows these, so one that comes through is of a cluster that is changing
}

// Errors of the client that say the same.
var unavailableErrors = []error{
	redis.ErrPoolTimeout, redis.ErrPoolExhausted, redis.ErrAutoPipelineQueueFull, redis.ErrAutoPipelineTimeout,
}

// Texts of client errors that say the same and that go-redis exports no value for.
var unavailableTexts = []string{"redis: all ring shards are down", "redis: cluster has no nodes"}

// classify marks what means "Redis cannot answer now" with [loki.Unavailable]. A permanent error (no permission, wrong
// password, a certificate that is not trusted, a client that its owner closed) gets advice. It is for a command that was
// sent for key.
func (h *Handler) classify(ctx context.Context, key string, err error) error {
	if err == nil {
		return nil
	}
	if refused := refusedBySentinels(err); refused != nil { // some of them, perhaps, before ctx ended
		return refused
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) { // the Locker knows whose context it was
		return err
	}
	if _, asked := sentinelErrors(err); asked {
		return loki.Unavailable(err)
	}
	if reply, ok := errors.AsType[redis.Error](err); ok {
		return h.classifyReply(key, code(reply.Error()), tame(err))
	}
	if advice := tlsAdvice(err); advice != "" {
		return fmt.Errorf("redishandler: %s: %w", advice, err)
	}
	if errors.Is(err, io.EOF) && withoutTLS(h.client) {
		return loki.Unavailable(fmt.Errorf("redishandler: the server closed the connection without an answer, as one does that expects TLS: see the client's TLSConfig if every connection ends so: %w", err))
	}
	if isUnavailable(err) {
		return loki.Unavailable(err)
	}
	return err
}

// isUnavailable is for what is no answer of a server.
func isUnavailable(err error) bool {
	return loki.IsUnavailable(err) || slices.ContainsFunc(unavailableErrors, func(e error) bool { return errors.Is(err, e) }) ||
		slices.ContainsFunc(unavailableTexts, func(s string) bool { return strings.Contains(err.Error(), s) })
}

// classifyReply is classify for an answer of the server.
func (h *Handler) classifyReply(key, code string, err error) error {
	_, single := h.client.(*redis.Client)
	switch {
	case code == "WRONGTYPE", code == "FOREIGN":
		return fmt.Errorf("redishandler: %s holds something that is not a lock; it was left as it is: move it away, or keep the locks apart with WithPrefix: %w",
			quoted(h.naming.keys(key)), err)
	case code == "EXHAUSTED":
		return fmt.Errorf("redishandler: the last fence of %s was the largest there is: delete the key that ends in %q once nothing guarded remembers a fence: %w",
			quoted(h.naming.keys(key)), fenceSuffix, err)
	case isUnknownCommand(err):
		return fmt.Errorf("redishandler: the server does not run scripts for this client: if this is the port of a sentinel, make the client with redis.NewFailoverClient; else the server has to have EVAL and EVALSHA, under these names: %w", err)
	case unknownInScript.MatchString(err.Error()):
		return fmt.Errorf("redishandler: the server lacks a command that the scripts call, or has it under another name: they need %s: %w", scripted, err)
	case redis.IsAuthError(err):
		return fmt.Errorf("redishandler: the server refused the client's login: check its Username and Password: %w", err)
	case isNoPermission(err):
		return fmt.Errorf("redishandler: the server's user lacks a permission (NOPERM): it needs EVAL, EVALSHA, %s, for every key such as %q; WAIT if WithReplicaAck is used; and PUBLISH, SUBSCRIBE, UNSUBSCRIBE and PING, for every channel such as %q, if waiters are to be woken; Check names those that are missing: %w",
			scripted, h.naming.keys(key)[0], h.naming.channel(key), err)
	case code == "MOVED" && single:
		return fmt.Errorf("redishandler: the server is part of a cluster and the client is for a single server: make it with redis.NewClusterClient: %w", err)
	case isUnavailableReply(code, err):
		return loki.Unavailable(err)
	}
	return err
}

func isUnavailableReply(code string, err error) bool {
	return redis.IsMaxClientsError(err) || slices.Contains(unavailableCodes, code)
}

// scripted are the commands that the scripts call, for a sentence.
const scripted = "GET, GETEX, SET, DEL, PEXPIRE, PTTL and TIME"

var (
	// refusedInScript finds a missing permission that a command in a script met: it has no code of its own. Redis 7.2
	// and later use other words than those before.
	refusedInScript = regexp.MustCompile(`ACL failure in script|user executing the script`)

	// unknownInScript finds a command that a script called and the server has not got.
	unknownInScript = regexp.MustCompile(`Unknown Redis command called from`)
)

func isNoPermission(err error) bool {
	return err != nil && (redis.IsPermissionError(err) || refusedInScript.MatchString(err.Error()))
}

// isUnknownCommand reports whether the server is too old for a command, or its owner has renamed it.
func isUnknownCommand(err error) bool { return redis.HasErrorPrefix(err, "unknown command") }

// inScript finds the code of an error that a command got inside a script. Redis before 7.0 puts the place in front:
//
//	ERR Error running script (call to f_6b1b...): @user_script:12: @user_script: 12: -OOM command not allowed ...
var inScript = regexp.MustCompile(`^ERR Error running script .*?@user_script: ?\d+: -?([A-Z]+) `)

// code returns the first word of an error reply.
func code(reply string) string {
	if found := inScript.FindStringSubmatch(reply); found != nil {
		return found[1]
	}
	code, _, _ := strings.Cut(strings.TrimPrefix(reply, "ERR "), " ") // some servers put "ERR" before every code
	return code
}

// quoted names a lock's keys: one of them, or both.
func quoted(keys []string) string {
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = strconv.Quote(key)
	}
	return strings.Join(names, " or its companion ")
}

// longestReply is how much is repeated of an error reply, in bytes.
const longestReply = 200

// replyError is an error reply of a server without what must not be repeated.
type replyError string

func (e replyError) Error() string { return string(e) }

// RedisError implements [redis.Error].
func (replyError) RedisError() {}

// tame cuts an error reply that is long, and the arguments off the answer to an unknown command: they have the owner token
// in them, with which anybody could release the lock.
func tame(err error) error {
	text, _, found := strings.Cut(err.Error(), ", with args beginning with")
	if len(text) > longestReply {
		text, found = strings.ToValidUTF8(text[:longestReply], "")+"...", true
	}
	if !found {
		return err
	}
	return replyError(text)
}
