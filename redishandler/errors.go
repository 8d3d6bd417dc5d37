package redishandler

// This file is the border between outages and mistakes.

import (
	"context"
	"errors"
	"fmt"
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

// classify marks what means "Redis cannot answer now" with [loki.Unavailable], and leaves a mistake (no permission,
// wrong password, a client that its owner closed) as it is. It is for a command that was sent for key.
func (h *Handler) classify(ctx context.Context, key string, err error) error {
	var reply redis.Error
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return err // the Locker knows whose context it was
	case errors.As(err, &reply):
		return h.classifyReply(key, code(reply.Error()), err)
	case loki.IsUnavailable(err), slices.ContainsFunc(unavailableErrors, func(e error) bool { return errors.Is(err, e) }),
		slices.ContainsFunc(unavailableTexts, func(s string) bool { return strings.Contains(err.Error(), s) }):
		return loki.Unavailable(err)
	}
	return err
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
	case redis.IsAuthError(err):
		return fmt.Errorf("redishandler: the server refused the client's login: check its Username and Password: %w", err)
	case redis.IsPermissionError(err), refusedInScript.MatchString(err.Error()):
		return fmt.Errorf("redishandler: the server's user lacks a permission (NOPERM): it needs EVAL, EVALSHA, GET, GETEX, SET, DEL, PEXPIRE, PTTL and TIME, for every key such as %q; WAIT if WithReplicaAck is used; and PUBLISH, SUBSCRIBE, UNSUBSCRIBE and PING, for every channel such as %q, if waiters are to be woken: %w",
			h.naming.keys(key)[0], h.naming.channel(key), err)
	case code == "MOVED" && single:
		return fmt.Errorf("redishandler: the server is part of a cluster and the client is for a single server: make it with redis.NewClusterClient: %w", err)
	case redis.IsMaxClientsError(err), slices.Contains(unavailableCodes, code):
		return loki.Unavailable(err)
	}
	return err
}

// refusedInScript finds a missing permission that a command in a script met: it has no code of its own. Redis 7.2 and
// later use other words than those before.
var refusedInScript = regexp.MustCompile(`ACL failure in script|user executing the script`)

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
