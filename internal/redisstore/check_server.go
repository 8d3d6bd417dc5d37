package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// oldestVersion is the first with GETEX.
var oldestVersion = []int{6, 2}

// checkServers looks at every server that may get a lock.
func (s *Store) checkServers(ctx context.Context, f *findings) {
	var servers []checkedServer
	self := checkedServer{s, s.client, checkedKey()}
	answered := f.within(ctx, self.name(), func() {
		var err error
		if servers, err = s.servers(ctx); err != nil {
			self.fail(ctx, f, err)
		}
	})
	if !answered {
		return
	}
	var all sync.WaitGroup
	for _, each := range servers {
		all.Go(func() { f.within(ctx, each.name(), func() { each.check(ctx, f) }) })
	}
	all.Wait()
}

// checkedServer is one server and the key of a lock that it would get.
type checkedServer struct {
	store  *Store
	client Client
	key    string
}

// checkedKey returns a key that is nobody's.
func checkedKey() string { return "loki-check-" + strings.ToLower(rand.Text()) }

// servers returns the masters of a cluster and the shards of a Ring; for any other client, that client.
func (s *Store) servers(ctx context.Context) ([]checkedServer, error) {
	var each func(context.Context, func(context.Context, *redis.Client) error) error
	var of func(key string) (*redis.Client, error)
	switch c := s.client.(type) {
	case *redis.ClusterClient:
		each, of = c.ForEachMaster, func(key string) (*redis.Client, error) { return c.MasterForKey(ctx, key) }
	case *redis.Ring:
		each, of = c.ForEachShard, c.GetShardClientForKey
	default:
		return []checkedServer{{s, s.client, checkedKey()}}, nil
	}
	var mu sync.Mutex
	missing := make(map[*redis.Client]bool)
	err := each(ctx, func(_ context.Context, client *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		missing[client] = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	// Nothing tells of which keys a server is, but to whom a key belongs is known without asking.
	const perServer = 10_000
	var servers []checkedServer
	for range perServer * len(missing) {
		if len(missing) == 0 {
			break
		}
		key := checkedKey()
		client, err := of(s.naming.keys(key)[0])
		if err != nil {
			return nil, err
		}
		if missing[client] {
			delete(missing, client)
			servers = append(servers, checkedServer{s, client, key})
		}
	}
	return servers, nil
}

func (s checkedServer) name() string { return nameOf(s.client) }

func (s checkedServer) user() string { return userOf(s.client) }

// fail adds an error of the server, unless it is that ctx has ended: whoever waits for the answer says so.
func (s checkedServer) fail(ctx context.Context, f *findings, err error) {
	st := s.store
	if _, moved := redis.IsMovedError(err); !moved { // by which a cluster's client is known
		st = s.alone()
	}
	if err = st.classify(ctx, s.key, err); ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
		f.fail(err)
	}
}

// alone returns a Store for this server of a cluster, whose errors name it.
func (s checkedServer) alone() *Store {
	return &Store{client: s.client, naming: s.store.naming}
}

// informed is what a client can do besides [Client] if it can be asked about its server; every client of go-redis can.
type informed interface {
	Info(ctx context.Context, sections ...string) *redis.StringCmd
	ConfigGet(ctx context.Context, parameter string) *redis.MapStringStringCmd
	Wait(ctx context.Context, replicas int, timeout time.Duration) *redis.IntCmd
}

func (s checkedServer) check(ctx context.Context, f *findings) {
	if speaksPlainly(ctx, s.client) {
		f.fault("%s", noTLS(s.name()))
		return
	}
	if s.checkInfo(ctx, f) {
		s.checkCommands(ctx, f)
		s.checkListening(ctx, f)
	}
}

// checkInfo looks at what the server says of itself. It returns false if to try anything would say nothing more.
func (s checkedServer) checkInfo(ctx context.Context, f *findings) (goOn bool) {
	client, ok := s.client.(informed)
	if !ok {
		f.advise("%s was not looked at, since a %T sends no INFO: see yourself to its version, eviction policy and persistence", s.name(), s.client)
		return true
	}
	text, err := client.Info(ctx).Result()
	switch {
	case err != nil && (isNoPermission(err) && !lackOf(err).ofHandshake() || isUnknownCommand(err)):
		f.advise("%s does not let this user run INFO: run ACL SETUSER %s +info for this check, or see yourself to its version, eviction policy and persistence", s.name(), s.user())
		return true
	case err != nil:
		s.fail(ctx, f, err)
		return false
	}
	info := parseInfo(text)
	_, single := s.store.client.(*redis.Client)
	switch {
	case info["redis_mode"] == "sentinel":
		f.fault("%s is a sentinel: make the client with redis.NewFailoverClient", s.name())
		return false
	case info["cluster_enabled"] == "1" && single:
		f.fault("%s is part of a cluster: make the client with redis.NewClusterClient", s.name())
		return false
	case info["role"] == "slave":
		f.fault("%s", isReplica(s.client, net.JoinHostPort(info["master_host"], info["master_port"])))
		return false
	}
	s.judge(ctx, f, client, info)
	return true
}

// judge is about a master.
func (s checkedServer) judge(ctx context.Context, f *findings, client informed, info map[string]string) {
	if version := info["redis_version"]; slices.Compare(numbers(version), oldestVersion) < 0 {
		f.fault("%s is Redis %s: it has to be 6.2 at least", s.name(), version)
	}
	if policy := info["maxmemory_policy"]; policy != "noeviction" && policy != "" && info["maxmemory"] != "0" {
		f.fault("%s evicts keys when its memory is full (maxmemory-policy %s), and locks among them: run CONFIG SET maxmemory-policy noeviction, or give the locks a server of their own", s.name(), policy)
	}
	if want, is := s.store.ack.Replicas, info["connected_slaves"]; want > 0 {
		if n, err := strconv.Atoi(is); err == nil && n < want {
			f.fault("%s has %d replicas, and WithReplicaAck asks for %d: attach more, or ask for fewer", s.name(), n, want)
		}
		if err := client.Wait(ctx, 0, time.Millisecond).Err(); isNoPermission(err) {
			f.fault("the user of %s may not run WAIT, which WithReplicaAck needs: run ACL SETUSER %s +wait", s.name(), s.user())
		}
	}
	switch info["aof_enabled"] {
	case "0":
		f.advise("%s forgets locks in a crash, since it does not log its writes: run CONFIG SET appendonly yes and CONFIG SET appendfsync always, or see what docs/guarantees.md says of it", s.name())
	case "1":
		if is, err := client.ConfigGet(ctx, "appendfsync").Result(); err == nil && is["appendfsync"] != "always" {
			f.advise("%s forgets the locks of its last second or two in a crash: run CONFIG SET appendfsync always, or see what docs/guarantees.md says of it", s.name())
		}
	}
}

// numbers returns the numbers of a version such as "7.0.15".
func numbers(version string) []int {
	var all []int
	for part := range strings.SplitSeq(version, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			break
		}
		all = append(all, n)
	}
	return all
}

// fromScript is what Redis before 7.0 puts before an error that a command got inside a script.
var fromScript = regexp.MustCompile(`^@user_script: ?\d+: ?`)

// checkCommands has the server try what the scripts call.
func (s checkedServer) checkCommands(ctx context.Context, f *findings) {
	keys := s.store.naming.keys(s.key)
	var missing []string
	noKeys := false
	refused := func(command string, err error) {
		switch l := lackOf(err); {
		case l.keys:
			noKeys = true
		case l.command != "": // which may be one of the handshake
			missing = append(missing, strings.ToUpper(l.command))
		default:
			missing = append(missing, command)
		}
	}
	failed, err := s.client.Eval(ctx, s.store.scripts.check.text.(string), keys).StringSlice()
	if isNoPermission(err) {
		refused("EVAL", err)
	} else if err != nil {
		s.fail(ctx, f, err)
		return
	}
	if err := s.client.EvalSha(ctx, s.store.scripts.check.digest.(string), keys).Err(); isNoPermission(err) {
		refused("EVALSHA", err)
	} else if err != nil && !redis.HasErrorPrefix(err, "NOSCRIPT") { // as after an EVAL that was refused
		s.fail(ctx, f, err)
		return
	}
	for i := 0; i+1 < len(failed); i += 2 {
		command := failed[i]
		err := scriptError(failed[i+1])
		switch {
		case command == s.store.waking && isNoPermission(err):
			s.adviseWaking(f, strings.ToLower(command), err)
		case command == s.store.waking: // a cluster that knows no messages in shards, for one
		case isNoPermission(err):
			refused(command, err)
		default:
			f.fail(s.alone().classifyReply(ctx, s.key, code(err.Error()), fmt.Errorf("%s: %w", command, err)))
		}
	}
	if noKeys {
		f.fault("the user of %s may not use keys such as %q: run ACL SETUSER %s ~%s", s.name(), keys[0], s.user(), s.store.pattern())
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		missing = slices.Compact(missing)
		f.fault("the user of %s may not run %s: run ACL SETUSER %s +%s",
			s.name(), strings.Join(missing, ", "), s.user(), strings.ToLower(strings.Join(missing, " +")))
	}
}

// adviseWaking names what keeps waiters from being woken: the channels, or a command.
func (s checkedServer) adviseWaking(f *findings, command string, err error) {
	if lackOf(err).channels {
		f.advise("waiters are not woken and poll, since the user of %s may not use channels such as %q: run ACL SETUSER %s &%s",
			s.name(), s.store.naming.channel(s.key), s.user(), s.store.pattern())
		return
	}
	f.advise("waiters are not woken and poll, since the user of %s may not run %s: run ACL SETUSER %s +%s", s.name(), strings.ToUpper(command), s.user(), command)
}

// scriptError returns the error that a command in a script met, by its text.
func scriptError(text string) error {
	return replyError(strings.TrimPrefix(fromScript.ReplaceAllString(text, ""), "-"))
}

// replyError is an error reply of a server that a script reported.
type replyError string

func (e replyError) Error() string { return string(e) }

// RedisError implements [redis.Error].
func (replyError) RedisError() {}

// checkListening listens for a moment.
func (s checkedServer) checkListening(ctx context.Context, f *findings) {
	listening, cancel := context.WithCancel(ctx)
	defer cancel()
	_, err := s.store.Notify(listening, s.key)
	switch {
	case err == nil:
	case errors.Is(err, errors.ErrUnsupported):
		f.advise("waiters are not woken and poll, since a %T cannot subscribe", s.store.client)
	case isNoPermission(err):
		command := lackOf(err).command
		if command == "" {
			command = "subscribe"
		}
		s.adviseWaking(f, command, err)
	case ctx.Err() == nil || !errors.Is(err, ctx.Err()):
		f.fail(err)
	}
}
