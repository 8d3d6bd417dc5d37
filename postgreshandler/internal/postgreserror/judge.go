// Package postgreserror judges the errors of pgx and of the server: which are repeated, which are outages, which are
// permanent errors, and what to do about each.
package postgreserror

import (
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/postgreshandler/internal/postgresname"
	"github.com/lokilock/loki/sqlhandler"
)

// Judge returns what an error of pgx means and what to do about it. Of several attempts to connect the decisive one counts;
// see [Shown].
func Judge(err error) (sqlhandler.Verdict, string) {
	if parse, ok := errors.AsType[*pgconn.ParseConfigError](err); ok {
		// A driver that the application opened reads the data source name, and its files, at each new connection.
		if file, ok := errors.AsType[interface {
			error
			Temporary() bool
		}](parse); ok && file.Temporary() {
			return sqlhandler.VerdictUnavailable, "" // this process has too many files open
		}
		return sqlhandler.VerdictPermanent, ""
	}
	connect, connecting := errors.AsType[*pgconn.ConnectError](err)
	if connecting {
		err = decisive(connect)
	}
	code := state(err)
	if connecting && code == "42501" {
		return sqlhandler.VerdictPermanent, fmt.Sprintf("this login may not connect to the database: run GRANT CONNECT ON DATABASE %s TO %s",
			postgresname.Quote(connect.Config.Database), postgresname.Quote(connect.Config.User))
	}
	if advice := mistakes[code]; advice != "" {
		return sqlhandler.VerdictPermanent, advice
	}
	if code == "08P01" {
		if advice := poolerAdvice(err); advice != "" {
			return sqlhandler.VerdictPermanent, advice
		}
	}
	if connecting && code == "" {
		if advice := tlsAdvice(err); advice != "" {
			return sqlhandler.VerdictPermanent, advice
		}
	}
	switch {
	case slices.Contains(victims, code):
		return sqlhandler.VerdictRetry, ""
	case slices.Contains(endings, code), code != "" && code[:2] == "08":
		if connecting { // it was refused rather than ended
			return sqlhandler.VerdictUnavailable, ""
		}
		return sqlhandler.VerdictBroken, ""
	case code == "25006":
		return sqlhandler.VerdictUnavailable, "the server is a hot standby, or this session only reads: " + Writable
	case slices.Contains(outages, code), code != "" && slices.Contains(outageClasses, code[:2]):
		return sqlhandler.VerdictUnavailable, ""
	case code != "":
		return sqlhandler.VerdictPermanent, AskCheck
	case errors.Is(err, pgconn.ErrReadOnlyConnection), errors.Is(err, pgconn.ErrStandbyConnection):
		return sqlhandler.VerdictUnavailable, "" // target_session_attrs asks for a primary, and none of the hosts is one now
	case connecting && isWrite(err):
		// In TLS 1.3 a server refuses a client's certificate when the client takes the handshake for done, and the reason
		// and the reset that comes with it race: another try most likely reads the reason.
		return sqlhandler.VerdictBroken, ""
	case connecting && loki.IsUnavailable(err):
		return sqlhandler.VerdictUnavailable, "" // not worth another try at once, as a connection that broke is
	case errors.Is(err, pgconn.ErrConnClosed):
		return sqlhandler.VerdictBroken, ""
	}
	return sqlhandler.VerdictUnknown, ""
}

func isWrite(err error) bool {
	operation, ok := errors.AsType[*net.OpError](err)
	return ok && operation.Op == "write"
}

// tlsAdvice says what to do about a connection that failed over TLS, and nothing if it did not.
func tlsAdvice(err error) string {
	var (
		name     x509.HostnameError
		invalid  x509.CertificateInvalidError
		untested *tls.CertificateVerificationError
		record   tls.RecordHeaderError
		alert    *net.OpError
	)
	switch {
	case errors.As(err, &name):
		return "the server's certificate is for another name: see the host in the data source name, or say sslmode=verify-ca"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the server's certificate has expired, or is not valid yet: renew it, or see this machine's clock"
	case errors.As(err, &untested):
		return "the server's certificate is not trusted: see sslrootcert in the data source name"
	case errors.As(err, &alert) && alert.Op == "remote error" && !loki.IsUnavailable(err):
		return "the server refuses this client's certificate, or asks for one: see sslcert and sslkey in the data source name"
	case errors.As(err, &record):
		return "what answers there does not speak TLS: see the port and sslmode in the data source name"
	case isTLSRefused(err):
		return "the server does not offer TLS: see sslmode in the data source name, and ssl in the server's configuration"
	}
	return ""
}

// poolerAdvice says what to do about a refusal that PgBouncer sends. It has one code for all that it says, also for what
// a server told it, so the text decides. What is left is an outage: query_wait_timeout, max_client_conn, a server that is down.
func poolerAdvice(err error) string {
	text := err.Error()
	for _, r := range refusals {
		if strings.Contains(text, r.text) {
			return "the pooler between refuses it: " + r.advice
		}
	}
	return ""
}

var refusals = []struct{ text, advice string }{
	{"no such database", "see the database in the data source name, and [databases] in the pooler's configuration"},
	{"no such user", "see the user in the data source name, and auth_file in the pooler's configuration"},
	{"authentication failed", "see the user and the password in the data source name, in the pooler's auth_file and in the server"},
	{"no pg_hba.conf entry", "see the server's pg_hba.conf, for the address of the pooler"},
	{"does not exist", "the server has no such database or role: see the data source name, and [databases] in the pooler's configuration"},
	{"unsupported startup parameter", "take the parameter out of the data source name, or add it to ignore_startup_parameters in the pooler's configuration"},
	{"SSL required", "it wants TLS: see sslmode in the data source name"},
	{"TLS required", "it wants TLS: see sslmode in the data source name"},
}

// IsOutage reports whether err, of making a connection, is of a server that cannot be reached or cannot answer now.
func IsOutage(err error) bool {
	verdict, _ := Judge(err)
	if verdict == sqlhandler.VerdictUnknown {
		return loki.IsUnavailable(err) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone)
	}
	return verdict != sqlhandler.VerdictPermanent
}

// state is the SQLSTATE of an error that the server sent, in whichever driver's words.
func state(err error) string {
	var coded interface{ SQLState() string }
	if errors.As(err, &coded) && len(coded.SQLState()) == 5 {
		return coded.SQLState()
	}
	return ""
}

// The codes below are those of the documentation's appendix "PostgreSQL Error Codes".

// mistakes are those of which something can be said.
var mistakes = map[string]string{
	"22003": "no fence is left, since the row of this key has the largest there is: delete the row",
	"22P05": "the encoding of this database does not have a character of it: use a database in UTF8",
	"22021": "the encoding of this database does not have a character of it: use a database in UTF8",
	"22P02": "this session's client_encoding is not UTF8, in which the key would be another one than in sessions where it is: add client_encoding=UTF8 to the data source name",
	"26000": BehindPooler,
	"28000": "the server does not let this login in: see the user in the data source name, whether it may log in, sslmode and sslcert, and the server's pg_hba.conf",
	"28P01": "the server does not take this password: see the user and the password in the data source name",
	"3D000": "the server has no such database: see the data source name, or have the database made",
	"3F000": "there is no such schema in this database: run migrations.Apply, or name it with WithSchema",
	"42501": "this login needs USAGE on the schema and SELECT, INSERT, UPDATE and DELETE on the table, and on that of a history: postgreshandler.Check says what is missing",
	"42703": "the table is another one: run migrations.Apply, or name the table with WithSchema and WithTable",
	"42P01": "there is no such table in this database: run migrations.Apply (with migrations.WithHistory if a history is kept), or name the table with WithSchema and WithTable",
	"42P05": BehindPooler,
	"42P10": "the table lacks its primary key on service_key: run migrations.Apply on a table that it made",
}

// AskCheck is the advice for an error whose code is not known here.
const AskCheck = "postgreshandler.Check says whether the table and the rights are as they have to be"

// Writable is the advice where the server, or the session, only reads.
const Writable = "connect to the primary, or name all servers in the data source name, with target_session_attrs=read-write; " +
	"see also default_transaction_read_only of the login, the database and the server"

// BehindPooler is the advice where a pooler lends connections on.
const BehindPooler = "a pooler stands between, and lends the connection on that a statement was prepared on: add default_query_exec_mode=exec to the data source name"

// IsLent reports whether err is of a connection that a pooler lends on after each transaction, with what was prepared on it.
func IsLent(err error) bool {
	code := state(err)
	return code == "26000" || code == "42P05"
}

// IsDenied reports whether the server refused err's statement for lack of a permission.
func IsDenied(err error) bool { return state(err) == "42501" }

// victims lost to another session and left nothing behind.
var victims = []string{
	"40001", // an isolation level above READ COMMITTED, and somebody else was quicker
	"40P01", // deadlock victim
	"55P03", // lock_timeout
}

// endings are what the server says last to a session that it ends: the next connection may be fine.
var endings = []string{
	"25P03", "25P04", // a session's own timeouts
	"57P01", "57P02", // ended by an administrator, or because another session crashed
	"57P05", // idle for too long
}

// outages are the errors of a server that cannot answer now.
var outages = []string{
	"40003", // whether the statement was completed is not known
	"57014", // canceled: statement_timeout, or by an administrator
	"57P03", // starting up, shutting down, or in recovery
	"57P04", // the database was dropped
	"72000", // the snapshot is too old
}

// outageClasses are the first two characters of more.
var outageClasses = []string{
	"53", // no connection, memory, disk or slot is left
	"58", // a system error outside PostgreSQL, as of a disk, or of a pooler that has no server
	"F0", // its configuration file
	"XX", // an internal error, or data that is damaged
}
