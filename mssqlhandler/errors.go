package mssqlhandler

import (
	"errors"
	"io"
	"net"
	"slices"
	"strings"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/lokilock/loki/sqlhandler"
)

// judge says what an error of go-mssqldb means and what to do about it.
func judge(err error) (sqlhandler.Verdict, string) {
	var (
		stream mssql.StreamError
		server mssql.ServerError
	)
	switch {
	case hasNumber(err, invalidObject):
		return sqlhandler.VerdictPermanent, "there is no such table in this database, or this login may not see it: run migrations.Apply (with migrations.WithHistory if a history is kept), or name the table with WithSchema and WithTable"
	case hasNumber(err, invalidColumn):
		return sqlhandler.VerdictPermanent, "the table is an older one: run migrations.Apply, which takes it over with its rows"
	case hasNumber(err, permissionDenied):
		return sqlhandler.VerdictPermanent, "this login needs SELECT, INSERT, UPDATE and DELETE on the table, and on that of a history SELECT, INSERT and DELETE: mssqlhandler.Check says which GRANT is missing"
	case hasNumber(err, overflow):
		return sqlhandler.VerdictPermanent, "no fence is left, since the row of this key has the largest there is: delete the row"
	case hasNumber(err, implicitTransactions):
		return sqlhandler.VerdictPermanent, leaveImplicitOut
	case hasNumber(err, wrongDatabase...):
		return sqlhandler.VerdictPermanent, "the server has no such database for this login: see the data source name, and whether the login is a user of the database"
	case hasNumber(err, firewall...):
		return sqlhandler.VerdictPermanent, "the server does not let this machine in: see its firewall's rules, those of its virtual network, and the server's name"
	case hasNumber(err, victims...):
		return sqlhandler.VerdictRetry, ""
	case errors.As(err, &stream), errors.As(err, &server):
		return sqlhandler.VerdictBroken, ""
	case hasNumber(err, unopened...):
		return sqlhandler.VerdictUnopened, "the server does not open this database: the name in the data source name is wrong, or the database is offline or failing over"
	case hasNumber(err, replica...):
		return sqlhandler.VerdictUnavailable, "the database cannot be written to here: " + writable
	case hasNumber(err, outages...), isSevere(err), begins(err, "failed to send "):
		return sqlhandler.VerdictUnavailable, ""
	case isCutHandshake(err):
		return sqlhandler.VerdictUnavailable, "the server ended the TLS handshake: it is down behind what answers for it, or has no TLS of this kind (encrypt=strict needs SQL Server 2022)"
	case isCertificate(err):
		return sqlhandler.VerdictPermanent, "the server's certificate is not accepted: see certificate, hostNameInCertificate and TrustServerCertificate in the data source name"
	case isTLS(err):
		return sqlhandler.VerdictPermanent, "this client and the server do not agree on TLS: see encrypt and tlsmin in the data source name, and whether the server asks for a client certificate"
	case isCutPrelogin(err):
		return sqlhandler.VerdictBroken, "the server ended the connection before it said anything: it is down behind what answers for it, or takes no connection without encrypt=strict"
	case begins(err, notTDS...):
		return sqlhandler.VerdictPermanent, "what answers is not a SQL Server, or one that wants encrypt=strict: see the host and the port in the data source name"
	case hasNumber(err, refusedLogin...): // the last number where the database could not be opened, too
		return sqlhandler.VerdictPermanent, "the server does not let this login in: see the user and the password in the data source name, and whether the login is disabled, locked or expired"
	case isOfServer(err):
		return sqlhandler.VerdictUnknown, askCheck
	}
	return sqlhandler.VerdictUnknown, ""
}

// askCheck is the advice for an error whose number is not known here. Some servers have one for nearly all of them.
const askCheck = "mssqlhandler.Check says whether the table and the rights are as they have to be"

// Advice that Check gives too.
const (
	leaveImplicitOut = "a claim would stand in a transaction that nobody commits: leave SET IMPLICIT_TRANSACTIONS ON out of what the connections begin with, or open a database for the handler alone"
	writable         = "connect to the primary replica, by the availability group's listener and without ApplicationIntent=ReadOnly; a database that was set to read-only needs ALTER DATABASE ... SET READ_WRITE"
)

// Numbers of SQL Server that are mistakes, with a sentence of their own.
const (
	invalidColumn    = 207
	invalidObject    = 208
	permissionDenied = 229
	overflow         = 8115
)

// implicitTransactions is the statements' own number for a session that they are not to be run in.
const implicitTransactions = 50007

// wrongDatabase are those of a database that is not there, or that the login may not enter.
var wrongDatabase = []int32{911, 916}

// firewall are those of Azure's: an address or a network that is not allowed, and a server that takes none from outside.
var firewall = []int32{40532, 40615, 40914, 47073}

// refusedLogin are those of a login that is refused as it is: a wrong name or password, a domain that is not trusted,
// disabled, locked, expired.
var refusedLogin = []int32{18450, 18452, 18456, 18470, 18486, 18487, 18488}

// unopened are those of a login whose database, or default one, is not opened. In a failover, and while a server that has
// started recovers the database, the login gets the same as with a misspelt name.
var unopened = []int32{4060, 4064}

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
	988,                    // the replica is not ready
	1105, 1204, 1221, 9002, // space, locks and log are used up
	3966, 3980, // the transaction was ended from outside
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

// replica are those of a replica that is not, or not yet, the primary, and of a database that cannot be written to. In a
// failover the primary becomes a secondary under an open connection (3906).
var replica = []int32{976, 978, 979, 982, 983, 3906}

const unfixableSeverity = 17

// hasNumber reports whether any error that the server sent has one of numbers: the reason often comes before the
// last error, as 4060 does before 18456.
func hasNumber(err error, numbers ...int32) bool {
	var e mssql.Error // a value, not a pointer
	if !errors.As(err, &e) {
		return false
	}
	return slices.Contains(numbers, e.Number) ||
		slices.ContainsFunc(e.All, func(e mssql.Error) bool { return slices.Contains(numbers, e.Number) })
}

func isOfServer(err error) bool {
	var e mssql.Error
	return errors.As(err, &e)
}

func isSevere(err error) bool {
	var e mssql.Error
	return errors.As(err, &e) && e.Class >= unfixableSeverity
}

// handshake is what go-mssqldb's errors of a TLS handshake begin with. Without encrypt=strict their cause is in the text
// alone.
const handshake = "TLS Handshake failed: "

// isCutHandshake recognises a handshake that the other side ended without a word, as a load balancer does whose servers
// are down, and a server that expects no handshake.
func isCutHandshake(err error) bool {
	if !begins(err, handshake) {
		return false
	}
	s := err.Error()
	return strings.HasSuffix(s, "EOF") || strings.HasSuffix(s, "connection reset by peer") || strings.HasSuffix(s, "broken pipe") ||
		strings.HasSuffix(s, "i/o timeout") || strings.HasSuffix(s, "forcibly closed by the remote host.") ||
		strings.HasSuffix(s, "remote error: tls: internal error")
}

func isCertificate(err error) bool {
	return begins(err, handshake) && (strings.Contains(err.Error(), "x509: ") || strings.Contains(err.Error(), "failed to verify certificate"))
}

// isTLS also recognises an alert that comes after the handshake, which is when a server with TLS 1.3 asks for a certificate.
func isTLS(err error) bool {
	alert, ok := errors.AsType[*net.OpError](err)
	return begins(err, handshake, "server does not support encryption") || ok && alert.Op == "remote error"
}

// isCutPrelogin recognises a connection that ended before the first answer. Later the driver has an error of its own
// around the EOF.
func isCutPrelogin(err error) bool {
	_, later := errors.AsType[*net.OpError](err)
	return !later && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF))
}

// notTDS are what go-mssqldb says of a first answer that it cannot read, in its spelling.
var notTDS = []string{"invalid respones, expected packet type 4", "invalid packet size", "invalid empty PRELOGIN", "invalid buffer, invalid prelogin", "encrypt negotiation failed"} //nolint:misspell // see above

// begins reports whether err, or an error that it wraps, begins with one of the driver's sentences.
func begins(err error, sentences ...string) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if slices.ContainsFunc(sentences, func(s string) bool { return strings.HasPrefix(err.Error(), s) }) {
			return true
		}
	}
	return false
}
