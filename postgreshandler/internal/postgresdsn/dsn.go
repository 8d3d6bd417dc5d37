// Package postgresdsn reads data source names, and says what is wrong with one without repeating any part of it.
//
// A data source name has a password in it, and any part of one that is malformed may be a piece of that: a character that
// is not escaped ends a value early.
package postgresdsn

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const escape = "percent-encode each @ : / ? # [ ] and % of the user and the password (an @ is %40)"

// Parse refuses what pgx would take for a server on this machine, or for another server than was meant.
func Parse(dsn string) (*pgx.ConnConfig, error) {
	if strings.TrimSpace(dsn) == "" {
		return nil, errors.New(`the data source name is empty: if all of it is in the environment (PGHOST and so on), say "postgres://"`)
	}
	if isSplit(dsn) {
		return nil, errors.New("the data source name has an @ in the name of the server or behind it: " + escape)
	}
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, Conceal(err)
	}
	return config, nil
}

// isSplit reports whether a character of the user or the password ended them early, so that the @ behind them is in the
// name of the server, in the path, or in the name of a parameter.
func isSplit(dsn string) bool {
	_, rest, isURL := strings.Cut(dsn, "://")
	if !isURL {
		return false
	}
	address, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(address, "/")
	if strings.Count(authority, "@") > 1 || strings.Contains(path, "@") {
		return true
	}
	for parameter := range strings.SplitSeq(query, "&") {
		if name, _, _ := strings.Cut(parameter, "="); strings.Contains(name, "@") {
			return true
		}
	}
	return false
}

// reasons are what pgx says, and what is said here.
var reasons = []struct{ pgx, said string }{
	{"failed to parse as URL", "it is no valid address: " + escape},
	{"failed to parse as keyword/value", "it is neither a postgres:// address nor a list of key=value: put a value with a blank in it between single quotes, and a backslash before each single quote and each backslash of a value"},
	{"is not in ConnStringAllowedKeys", "it has a key that is not allowed"},
	{"failed to read service", "the service that it names cannot be read: see PGSERVICEFILE"},
	{"invalid connect_timeout", "connect_timeout is no number of seconds"},
	{"port numbers to", "it has another number of ports than of hosts"},
	{"invalid port", "the port is no number from 1 to 65535: if it is a piece of the password, " + escape},
	{"sslmode is invalid", "sslmode is not disable, allow, prefer, require, verify-ca or verify-full"},
	{"unable to add CA to cert pool", "the file of sslrootcert has no certificate in it"},
	{`both "sslcert" and "sslkey" are required`, "sslcert and sslkey go together, and one of them is missing"},
	{"failed to configure TLS", "TLS cannot be set up as it says: see sslmode, sslrootcert, sslcert and sslkey, and whether the files can be read"},
	{"target_session_attrs", "target_session_attrs is not any, read-write, read-only, primary, standby or prefer-standby"},
	{"protocol_version", "min_protocol_version or max_protocol_version is no version"},
	{"sslcertmode", "sslcertmode is not disable, allow or require"},
	{"channel_binding", "channel_binding is not disable, prefer or require"},
	{"require_auth", "require_auth names no method of authentication"},
	{"default_query_exec_mode", "default_query_exec_mode is not cache_statement, cache_describe, describe_exec, exec or simple_protocol"},
	{"_cache_capacity", "a cache's capacity is no number"},
}

// file is the file that could not be read, and why. A path is no secret, unless a quote that is missing, or a character that
// is not escaped, made more of the data source name a part of it.
func file(err error) string {
	path, ok := errors.AsType[*fs.PathError](err)
	if !ok || strings.ContainsAny(path.Path, "=@&'\"\n") {
		return ""
	}
	return " (" + path.Error() + ")"
}

// Conceal returns err, or an error in its place where err repeats a data source name: one that pgx could not read, or that
// it read as another server's or database's because a character of the password was not escaped. That one does not wrap
// err, which carries the data source name.
func Conceal(err error) error {
	var parse *pgconn.ParseConfigError
	var connect *pgconn.ConnectError
	switch {
	case errors.As(err, &parse):
		text := parse.Error()
		text = text[strings.LastIndex(text, "`: ")+1:]
		for _, reason := range reasons {
			if strings.Contains(text, reason.pgx) {
				return errors.New("the data source name cannot be used: " + reason.said + file(parse))
			}
		}
		return errors.New("the data source name cannot be used")
	case errors.As(err, &connect) && strings.Contains(connect.Config.Host+connect.Config.Database, "@"):
		return errors.New("no connection: the name of the server or of the database in the data source name has an @ in it: " + escape)
	}
	return err
}
