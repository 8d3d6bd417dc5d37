package redisstore

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// refusedInScript finds a missing permission that a command in a script met: it has no code of its own. Redis 7.2 and
// later use other words than those before.
var refusedInScript = regexp.MustCompile(`ACL failure in script|user executing the script`)

func isNoPermission(err error) bool {
	return err != nil && (redis.IsPermissionError(err) || refusedInScript.MatchString(err.Error()))
}

// lack is what a user lacks by one answer. All is zero if the answer does not say, as that to a command in a script before
// Redis 7.2.
type lack struct {
	command        string // as the server names it: in lower case, with "|" before a subcommand
	keys, channels bool
}

var (
	lacksCommand  = regexp.MustCompile(`to run the '([^']+)' command`)
	lacksKeys     = regexp.MustCompile(`\bkeys?\b`)
	lacksChannels = regexp.MustCompile(`\bchannels?\b`)
)

func lackOf(err error) lack {
	if found := lacksCommand.FindStringSubmatch(err.Error()); found != nil {
		return lack{command: strings.ToLower(found[1])}
	}
	return lack{keys: lacksKeys.MatchString(err.Error()), channels: lacksChannels.MatchString(err.Error())}
}

// ofHandshake reports whether the command is one with which a client begins a connection. Its error comes in the place of
// that of any command.
func (l lack) ofHandshake() bool {
	command, _, _ := strings.Cut(l.command, "|")
	return slices.Contains([]string{"select", "readonly", "client", "auth", "hello"}, command)
}

// noPermission is [Store.classify] for what the server's user may not do.
func (s *Store) noPermission(key string, err error) error {
	server, user := s.server(), userOf(s.client)
	switch l := lackOf(err); {
	case l.ofHandshake():
		return fmt.Errorf("the user of %s may not run %s, with which the client begins a connection (NOPERM): run ACL SETUSER %s +%s%s: %w",
			server, strings.ToUpper(l.command), user, l.command, orElse(l.command), err)
	case l.command != "":
		return fmt.Errorf("the user of %s may not run %s (NOPERM): run ACL SETUSER %s +%s; Check names all that is missing: %w",
			server, strings.ToUpper(l.command), user, l.command, err)
	case l.channels:
		return fmt.Errorf("the user of %s may not use channels such as %q (NOPERM): run ACL SETUSER %s &%s: %w",
			server, s.naming.channel(key), user, s.pattern(), err)
	case l.keys:
		return fmt.Errorf("the user of %s may not use keys such as %q (NOPERM): run ACL SETUSER %s ~%s: %w",
			server, s.naming.keys(key)[0], user, s.pattern(), err)
	}
	return fmt.Errorf("the user of %s may not run a command that the scripts call (NOPERM): Check names it: %w", server, err)
}

// orElse is what else makes a command of the handshake superfluous.
func orElse(command string) string {
	switch command {
	case "select":
		return ", or leave the client's DB at 0"
	case "client|setname":
		return ", or leave the client's ClientName out"
	}
	return ""
}

// pattern matches the keys and channels of every lock.
func (s *Store) pattern() string {
	if s.naming.lokiNet {
		return "*"
	}
	return s.naming.prefix + "*"
}

// userOf is the client's login, for ACL SETUSER.
func userOf(client Client) string {
	user := ""
	switch c := client.(type) {
	case *redis.ClusterClient:
		user = c.Options().Username
	case *redis.Ring:
		user = c.Options().Username
	case interface{ Options() *redis.Options }:
		if c.Options() != nil {
			user = c.Options().Username
		}
	}
	if user == "" {
		return "default"
	}
	return user
}
