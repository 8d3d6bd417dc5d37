package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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
// sent for key. The end of ctx comes back as it is; every other error begins with "", as all of this package
// do, and names the server where the client tells which it is.
func (s *Store) classify(ctx context.Context, key string, err error) error {
	if err == nil {
		return nil
	}
	if refused := refusedBySentinels(err); refused != nil { // some of them, perhaps, before ctx ended
		return refused
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) { // the Locker knows whose context it was
		return err
	}
	if ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) { // of the connection, which has ctx's deadline
		return ctx.Err()
	}
	if _, asked := sentinelErrors(err); asked {
		return loki.Unavailable(s.located(tame(err)))
	}
	if reply, ok := errors.AsType[redis.Error](err); ok {
		return s.classifyReply(ctx, key, code(tame(reply).Error()), tame(err))
	}
	if advice := tlsAdvice(err, s.server()); advice != "" {
		return fmt.Errorf("%s: %w", advice, err)
	}
	if errors.Is(err, io.EOF) {
		reason := ""
		if withoutTLS(s.client) {
			reason = ", as one does that expects TLS (see the client's TLSConfig)"
		}
		return loki.Unavailable(fmt.Errorf("%s closed the connection without an answer%s; if every connection ends so, this may not be the port of a Redis server: %w", s.server(), reason, err))
	}
	if isForeign(err) {
		return fmt.Errorf("%s does not answer as Redis does: check whether this is its port: %s", s.server(), cut(err.Error()))
	}
	if isUnavailable(err) {
		return loki.Unavailable(s.located(err))
	}
	return s.located(err)
}

// server is what a sentence calls the client's server.
func (s *Store) server() string { return nameOf(s.client) }

func nameOf(client Client) string {
	if at := Address(client); at != "" {
		return "the server at " + at
	}
	return "the server"
}

// located puts the server's name before an error, unless it is there already.
func (s *Store) located(err error) error {
	if at := Address(s.client); at == "" || strings.Contains(err.Error(), at) {
		return err
	}
	return fmt.Errorf("%s: %w", s.server(), err)
}

// isForeign reports whether the server speaks something else than Redis's protocol, of which go-redis makes no value.
func isForeign(err error) bool {
	return strings.HasPrefix(err.Error(), "redis: invalid reply: ") || strings.HasPrefix(err.Error(), "redis: can't parse ")
}

// isUnavailable is for what is no answer of a server.
func isUnavailable(err error) bool {
	return loki.IsUnavailable(err) || slices.ContainsFunc(unavailableErrors, func(e error) bool { return errors.Is(err, e) }) ||
		slices.ContainsFunc(unavailableTexts, func(s string) bool { return strings.Contains(err.Error(), s) })
}

// classifyReply is classify for an answer of the server.
func (s *Store) classifyReply(ctx context.Context, key, code string, err error) error {
	_, single := s.client.(*redis.Client)
	switch {
	case code == "WRONGTYPE", code == "FOREIGN":
		return fmt.Errorf("%s holds something that is not a lock; it was left as it is: move it away, or keep the locks apart with WithPrefix: %w",
			quoted(s.naming.keys(key)), err)
	case code == "EXHAUSTED":
		return fmt.Errorf("the fencing token of %s would be beyond 2^53, more than Redis can count: unless another store's tokens are as large, delete the key that ends in %q: %w",
			quoted(s.naming.keys(key)), fenceSuffix, err)
	case isUnknownCommand(err):
		return fmt.Errorf("%s does not run scripts for this client: if this is the port of a sentinel, make the client with redis.NewFailoverClient; else the server has to have EVAL and EVALSHA, under these names: %w", s.server(), err)
	case unknownInScript.MatchString(err.Error()):
		return fmt.Errorf("%s lacks a command that the scripts call, or has it under another name: they need %s: %w", s.server(), scripted, err)
	case redis.IsAuthError(err):
		return fmt.Errorf("%s refused the client's login: check its Username and Password: %w", s.server(), err)
	case isNoPermission(err):
		return s.noPermission(key, err)
	case noDatabase.MatchString(err.Error()):
		return fmt.Errorf("%s has no such database: check the client's DB, which is 0 in a cluster: %w", s.server(), err)
	case code == "MOVED" && single:
		return fmt.Errorf("%s is part of a cluster and the client is for a single server: make it with redis.NewClusterClient: %w", s.server(), err)
	case code == "READONLY":
		return loki.Unavailable(fmt.Errorf("%s: %w", isReplica(s.client, s.masterOf(ctx)), err))
	case isUnavailableReply(code, err):
		return loki.Unavailable(s.located(err))
	}
	return s.located(err)
}

// noDatabase finds what a server answers to the SELECT of a database that it does not have.
var noDatabase = regexp.MustCompile(`DB index is out of range|invalid DB index|SELECT is not allowed in cluster mode`)

func isUnavailableReply(code string, err error) bool {
	return redis.IsMaxClientsError(err) || slices.Contains(unavailableCodes, code)
}

// scripted are the commands that the scripts call, for a sentence.
const scripted = "GET, GETEX, SET, DEL, PEXPIRE, PTTL and TIME"

// unknownInScript finds a command that a script called and the server has not got.
var unknownInScript = regexp.MustCompile(`Unknown Redis command called from`)

// isUnknownCommand reports whether the server is too old for a command, or its owner has renamed it.
func isUnknownCommand(err error) bool { return redis.HasErrorPrefix(err, "unknown command") }

// Where in a script an error was raised, which is nobody's business but this package's. Redis before 7.0 puts the place in
// front, and later versions at the end:
//
//	ERR Error running script (call to f_6b1b...): @user_script:12: @user_script: 12: -OOM command not allowed ...
//	OOM command not allowed when used memory > 'maxmemory'. script: 6b1b..., on @user_script:12.
var (
	beforeScripted = regexp.MustCompile(`^ERR Error running script .*?(@user_script: ?\d+: )+-?`)
	afterScripted  = regexp.MustCompile(` script: [0-9a-f]{40}, on @user_script:\d+\.?`)
)

// code returns the first word of an error reply that is tame.
func code(reply string) string {
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

// longestReply is how much is repeated of what a server answered, in bytes.
const longestReply = 200

func cut(text string) string {
	if len(text) <= longestReply {
		return text
	}
	return strings.ToValidUTF8(text[:longestReply], "") + "..."
}

// tamed is an error with a text of its own, without what must not be repeated of the error's.
type tamed struct {
	text string
	err  error
}

func (e *tamed) Error() string { return e.text }

func (e *tamed) Unwrap() error { return e.err }

// tame cuts an error reply that is long, the place in a script off that it came from, and the arguments off the answer to
// an unknown command: they have the owner token in them, with which anybody could release the lock. A server without a
// login answers a long request as such, and any other one with NOAUTH.
func tame(err error) error {
	text, _, _ := strings.Cut(err.Error(), ", with args beginning with")
	text = strings.ReplaceAll(text, "\n", "; ") // of several sentinels
	text = afterScripted.ReplaceAllString(beforeScripted.ReplaceAllString(text, ""), "")
	if strings.HasPrefix(text, "ERR Protocol error: unauthenticated ") {
		text = "NOAUTH Authentication required."
	}
	if text = cut(text); text == err.Error() {
		return err
	}
	return &tamed{text, err}
}

// Address is where the client's server is, as far as the client tells. One for Sentinel has a word in the place of an address.
func Address(client Client) string {
	c, ok := client.(interface{ Options() *redis.Options })
	if !ok || c.Options() == nil || c.Options().Addr == "FailoverClient" {
		return ""
	}
	return c.Options().Addr
}
