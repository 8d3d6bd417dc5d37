package mssqlhandler

// This file is what can go wrong: what is repeated, what is an outage, what is a mistake, and what to do about it.

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/lokilock/loki"
)

// The columns' lengths, in UTF-16 units. A longer key or token would be cut by the server, which is never the answer.
const (
	maxKey   = 400
	maxToken = 128
)

var errNoAnswer = errors.New("the server sent no answer, which no server should: is there something between it and the driver that swallows result sets?")

// do makes one call of the store. The call may be made again: every statement is right if it runs twice.
//
//   - A victim of a deadlock, of a lock timeout or of a snapshot conflict is repeated once: nothing was changed.
//   - Pooled connections that died with the server, in a restart or an idle cut, fail at their first use, and the driver
//     tells database/sql so only if the sending failed. Any that was idle may be one of those, so the call is repeated
//     until a connection was a new one.
func (h *Handler) do(ctx context.Context, op, key string, call func() error) error {
	if err := h.Validate(); err != nil {
		return err
	}
	err := call()
	victim, dead := 1, 0
	if err != nil && brokeConnection(err) {
		dead = 1 + h.db.Stats().Idle
	}
	for err != nil && ctx.Err() == nil {
		if victim > 0 && hasNumber(err, victims) {
			victim--
		} else if dead > 0 && brokeConnection(err) {
			dead--
		} else {
			break
		}
		err = call()
	}
	return h.explain(ctx, op, key, err)
}

// explain says what happened to which key in which table, what to do about it, and whether it is an outage.
func (h *Handler) explain(ctx context.Context, op, key string, err error) error {
	if err == nil {
		return nil
	}
	if ended := ctx.Err(); ended != nil {
		if errors.Is(err, ended) {
			return err
		}
		return fmt.Errorf("%w: %w", ended, err) // the driver tells what became of the connection instead
	}
	what := fmt.Sprintf("mssqlhandler: %s of %q in %s", op, key, h.table.Quoted())
	switch {
	case hasNumber(err, []int32{invalidObject}):
		return fmt.Errorf("%s: there is no such table in this database, or this login may not see it: run migrations.Apply, or name the table with WithSchema and WithTable: %w", what, err)
	case hasNumber(err, []int32{invalidColumn}):
		return fmt.Errorf("%s: the table is an older one: run migrations.Apply, which takes it over with its rows: %w", what, err)
	case hasNumber(err, []int32{permissionDenied}):
		return fmt.Errorf("%s: this login needs SELECT, INSERT, UPDATE and DELETE on the table: %w", what, err)
	case hasNumber(err, []int32{outputWithTrigger}):
		return fmt.Errorf("%s: the table has a trigger, which the statements cannot work with: disable it: %w", what, err)
	case hasNumber(err, []int32{overflow}):
		return fmt.Errorf("%s: no fence is left, a claim brought the largest there is: delete the row: %w", what, err)
	case isOutage(err):
		return loki.Unavailable(fmt.Errorf("%s: %w", what, err))
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Numbers of SQL Server that are mistakes, with a sentence of their own.
const (
	invalidColumn     = 207
	invalidObject     = 208
	permissionDenied  = 229
	outputWithTrigger = 334
	overflow          = 8115
)

// victims lost to another session and left nothing behind.
var victims = []int32{
	1205, // deadlock victim
	1222, // lock request timeout
	3960, // update conflict under SNAPSHOT
}

// outages are the errors of a server, or of what stands in front of it, that cannot answer now. Whatever has a severity
// of 17 or more belongs to them without being named: resources, internal errors and fatal ones, which by the
// documentation no user can correct. The named ones come with a lower severity, or with none through a gateway. The
// lists of SqlClient (SqlConfigurableRetryFactory) and of Azure SQL ("transient fault error messages") are in here, and
// the states of a database that is failing over.
var outages = []int32{
	596,                     // the session was killed
	617, 669, 671, 701, 802, // memory, and what is cached in it
	921, 922, 923, 924, 926, 927, 942, 945, 952, 954, 955, // the database is recovering, restricted, offline, a mirror
	976, 978, 979, 982, 983, 988, // the replica is not, or not yet, the primary
	1105, 1204, 1221, 9002, // space, locks and log are used up
	3906,       // read-only: the primary has become a secondary under an open connection
	3966, 3980, // the transaction was ended from outside
	4060, 4064, // the database cannot be opened; in a failover the login says so first. A misspelt name looks the same
	4221,             // the secondary is not ready for logins
	6005,             // shutting down
	8628, 8645, 8651, // waited for memory
	10922, 10928, 10929, 10930, 10936, // governed resources
	17142, 17189, 17197, 17803, 17809, 17830, // paused, or no time, thread, memory or slot for another connection
	18401, 18451, // only administrators may log in: upgrading, or shutting down
	64, 121, 233, 997, 10053, 10054, 10060, 10061, // transport, as gateways pass it on
	40143, 40166, 40174, 40197, 40501, 40540, 40544, 40549, 40550, 40551, 40552, 40553,
	40613, 40642, 40648, 40671, 40675, 40890, // Azure: reconfiguring, throttling, over quota
	42108, 42109, 45156, 45157, 45161, 45168, 45169, 45182, // a pool or server that is paused, waking or busy
	49918, 49919, 49920, 49977, 49983, // too many operations
}

const unfixableSeverity = 17

// isOutage reports whether err means that the store cannot answer now.
func isOutage(err error) bool {
	return loki.IsUnavailable(err) || brokeConnection(err) || errors.Is(err, driver.ErrBadConn) ||
		hasNumber(err, victims) || hasNumber(err, outages) || isSevere(err) || isCutConnect(err)
}

// brokeConnection reports whether err broke a connection that had been made, so that another one may work. Not being
// able to make one is no reason to try at once again, and what database/sql calls a bad connection it has retried.
func brokeConnection(err error) bool {
	var dial *net.OpError
	var resolve *net.DNSError
	if errors.As(err, &resolve) || errors.As(err, &dial) && dial.Op == "dial" || errors.Is(err, driver.ErrBadConn) {
		return false
	}
	var stream mssql.StreamError
	var server mssql.ServerError
	var network net.Error
	return errors.As(err, &stream) || errors.As(err, &server) || errors.As(err, &network) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// hasNumber reports whether any error that the server sent has one of numbers: the reason often comes before the
// last error, as 4060 does before 18456.
func hasNumber(err error, numbers []int32) bool {
	var e mssql.Error // a value, not a pointer
	if !errors.As(err, &e) {
		return false
	}
	return slices.Contains(numbers, e.Number) ||
		slices.ContainsFunc(e.All, func(e mssql.Error) bool { return slices.Contains(numbers, e.Number) })
}

func isSevere(err error) bool {
	var e mssql.Error
	return errors.As(err, &e) && e.Class >= unfixableSeverity
}

// isCutConnect recognises the failures that the driver tells as text alone, with the cause formatted into it: a
// handshake that was cut, as by a load balancer whose servers are down, and a send that failed while its retries are
// switched off. A handshake that failed over a certificate is somebody's mistake and has none of these endings.
func isCutConnect(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		s := err.Error()
		if strings.HasPrefix(s, "failed to send ") {
			return true
		}
		if strings.HasPrefix(s, "TLS Handshake failed: ") {
			return strings.HasSuffix(s, "EOF") || strings.HasSuffix(s, "connection reset by peer") ||
				strings.HasSuffix(s, "broken pipe") || strings.HasSuffix(s, "i/o timeout") || strings.HasSuffix(s, "forcibly closed by the remote host.")
		}
	}
	return false
}

// checkClaim refuses what could not be recorded as asked.
func checkClaim(c loki.Claim) error {
	if err := checkHeld(c); err != nil {
		return err
	}
	switch {
	case c.Expiry <= 0 || c.Expiry > longestExpiry:
		return fmt.Errorf("the claim's expiry is %v: it must be positive and at most %v", c.Expiry, longestExpiry)
	case !utf8.ValidString(c.Holder):
		return fmt.Errorf("the claim's holder %q is not valid UTF-8", c.Holder)
	}
	return nil
}

// checkHeld refuses a claim that no row can be of.
func checkHeld(c loki.Claim) error {
	mistakes := []error{checkKey(c.Key), checkToken("token", c.Token)}
	if c.Supersedes != "" {
		mistakes = append(mistakes, checkToken("superseded token", c.Supersedes))
	}
	return errors.Join(mistakes...)
}

// checkKey counts the mark that a key may get when it is stored.
func checkKey(key string) error {
	if strings.HasSuffix(key, " ") || strings.HasSuffix(key, endMark) {
		return checkText("key", key, maxKey-len(endMark))
	}
	return checkText("key", key, maxKey)
}

func checkToken(what, token string) error {
	if strings.HasSuffix(token, " ") {
		return fmt.Errorf("the %s %q ends in a blank, which SQL Server ignores when it compares", what, token)
	}
	return checkText(what, token, maxToken)
}

// checkText refuses what the server would cut or replace.
func checkText(what, s string, limit int) error {
	switch {
	case s == "":
		return fmt.Errorf("the claim has no %s", what)
	case !utf8.ValidString(s):
		return fmt.Errorf("the %s %q is not valid UTF-8", what, s)
	case len(utf16.Encode([]rune(s))) > limit:
		return fmt.Errorf("the %s is longer than the %d UTF-16 units of its column: %q", what, limit, s)
	}
	return nil
}
