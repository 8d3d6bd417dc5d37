package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki"
)

// tlsAdvice returns what to do about a TLS handshake that will fail again; empty if err is of none. A server that wants a
// certificate says so after the handshake, as an alert, in the place of its first answer.
func tlsAdvice(err error, server string) string {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "the client does not trust the certificate of " + server + ": check RootCAs and ServerName of its TLSConfig, and the certificate's names and dates"
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return noTLS(server)
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" && !loki.IsUnavailable(op) {
		return server + " refused the TLS handshake: check the client's TLSConfig, first of all the certificate that the server may ask for (Certificates)"
	}
	return ""
}

func noTLS(server string) string {
	return server + " does not speak TLS at this port: name its TLS port, or leave the client's TLSConfig out"
}

// withoutTLS reports whether the client is known to speak without TLS. A dialer of its owner's may do what it likes, and is
// not seen here.
func withoutTLS(client Client) bool {
	switch c := client.(type) {
	case *redis.Client:
		return c.Options().TLSConfig == nil
	case *redis.ClusterClient:
		return c.Options().TLSConfig == nil
	}
	return false
}

// speaksPlainly reports whether the client is for TLS and the server answers without. Over TLS such a server does not answer
// at all: it waits for the end of what it takes for a command.
func speaksPlainly(ctx context.Context, client Client) bool {
	c, ok := client.(*redis.Client)
	if !ok || c.Options().TLSConfig == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, c.Options().Network, c.Options().Addr)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	first := make([]byte, 1)
	_, err = conn.Read(first)
	return err == nil && (first[0] == '+' || first[0] == '-') // TLS has an alert, or the end
}

// errNoTLS is the cause with which [Store.unlessPlain] ends a context.
var errNoTLS = errors.New("no TLS")

// unlessPlain returns a context that ends with errNoTLS if the server turns out to answer without TLS to a client that is for
// TLS. It is for a request that is repeated since there was no answer.
func (s *Store) unlessPlain(ctx context.Context) (context.Context, context.CancelFunc) {
	if c, ok := s.client.(*redis.Client); !ok || c.Options().TLSConfig == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		if speaksPlainly(ctx, s.client) {
			cancel(errNoTLS)
		}
	}()
	return ctx, func() { cancel(nil) }
}

// isReplica says that the client's server is a replica, and whose, if master is not empty.
func isReplica(client Client, master string) string {
	if Address(client) == "" {
		return nameOf(client) + " is a replica, which cannot be written to, as during a failover"
	}
	if master != "" {
		master = fmt.Sprintf(", which is %q", master)
	}
	return nameOf(client) + " is a replica, which cannot be written to: name its master" + master + ", or have Sentinel name it (redis.NewFailoverClient)"
}

// masterOf returns the address of a replica's master, or "" if that does not turn out in a moment. It asks over a connection
// of its own, once in a while: a replica answers every call so.
func (s *Store) masterOf(ctx context.Context) string {
	c, ok := s.client.(*redis.Client)
	if !ok || Address(c) == "" {
		return ""
	}
	s.master.Lock()
	defer s.master.Unlock()
	if time.Since(s.master.asked) < masterLasts {
		return s.master.address
	}
	ctx, cancel := context.WithTimeout(ctx, masterPatience)
	defer cancel()
	client := redis.NewClient(freshOptions(*c.Options()))
	defer func() { _ = client.Close() }()
	text, _ := client.Info(ctx, "replication").Result()
	info := parseInfo(text)
	s.master.asked, s.master.address = time.Now(), ""
	if info["role"] == "slave" {
		s.master.address = net.JoinHostPort(info["master_host"], info["master_port"])
	}
	return s.master.address
}

const (
	masterPatience = 100 * time.Millisecond // how long a call is kept for the name of a replica's master
	masterLasts    = 5 * time.Second        // for how long that counts
)

// parseInfo reads the answer to INFO.
func parseInfo(text string) map[string]string {
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		info[name] = value
	}
	return info
}

// sentinelErrors returns what each sentinel answered to a client for Sentinel that asked for the master and did not learn
// it. go-redis has no value for that error.
func sentinelErrors(err error) ([]error, bool) {
	if !strings.HasPrefix(err.Error(), "redis: all sentinels specified in configuration are unreachable") {
		return nil, false
	}
	joined, ok := errors.AsType[interface {
		error
		Unwrap() []error
	}](err)
	if !ok {
		return nil, false
	}
	return joined.Unwrap(), true
}

// refusedBySentinels returns the permanent error in what the sentinels answered, or nil. One is enough, since the others are
// given the same login. That one does not know the master counts only if each of them answered so: the others might.
func refusedBySentinels(err error) error {
	answers, asked := sentinelErrors(err)
	if !asked {
		return nil
	}
	ignorant := 0
	for _, answer := range answers {
		advice := ""
		reply, answered := errors.AsType[redis.Error](answer)
		switch {
		case errors.Is(answer, redis.Nil):
			ignorant++
		case !answered:
			if advice = tlsAdvice(answer, "the sentinel"); advice != "" {
				advice = "no sentinel can be asked for the master: " + advice
			}
		case redis.IsAuthError(answer):
			advice = "the sentinels refused the client's login: check its SentinelUsername and SentinelPassword, which are not those of the server"
		case isNoPermission(answer):
			advice = "the sentinels' user lacks a permission (NOPERM): docs/redis.md has what SentinelUsername needs"
		case isUnknownCommand(answer):
			advice = "SentinelAddrs names a server that is no sentinel: check the ports"
		case !isUnavailableReply(code(reply.Error()), answer):
			advice = "a sentinel refused to name the master"
		}
		if advice != "" {
			return fmt.Errorf("%s: %w", advice, &tamed{tame(err).Error(), answer}) // the others may be down
		}
	}
	if ignorant == len(answers) {
		return fmt.Errorf("no sentinel knows a master of this name: check the client's MasterName: %w", tame(err))
	}
	return nil
}
