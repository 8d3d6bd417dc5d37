package postgreserror

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lokilock/loki/postgreshandler/internal/postgresdsn"
)

// Shown returns err as an error of this module repeats it: without secrets, and of several attempts to connect with the
// decisive one alone, in one line. pgx joins what all of them ended with. With its default, sslmode=prefer, there are two
// for each address, with TLS and without, so "server refused TLS connection" would come before every reason.
func Shown(err error) error {
	if concealed := postgresdsn.Conceal(err); concealed != err { //nolint:errorlint // whether it is another value
		return concealed
	}
	connect, ok := errors.AsType[*pgconn.ConnectError](err)
	if !ok || len(attempts(connect)) == 1 && !strings.Contains(connect.Error(), "\n") {
		return err
	}
	return &attemptError{connect, decisive(connect)}
}

// attemptError is a connect error whose other attempts are left out, also for errors.Is and errors.As: the outage of one
// address says nothing of a login that another refused.
type attemptError struct {
	connect *pgconn.ConnectError
	err     error
}

func (e *attemptError) Error() string {
	return fmt.Sprintf("failed to connect to `user=%s database=%s`: %s", e.connect.Config.User, e.connect.Config.Database,
		strings.NewReplacer("\n", "; ", "\t", "").Replace(e.err.Error()))
}

func (e *attemptError) Unwrap() error { return e.err }

// As finds the driver's error too.
func (e *attemptError) As(target any) bool {
	connect, ok := target.(**pgconn.ConnectError)
	if ok {
		*connect = e.connect
	}
	return ok
}

// attempts is what each attempt to connect ended with, in their order.
func attempts(connect *pgconn.ConnectError) []error {
	if joined, ok := connect.Unwrap().(interface{ Unwrap() []error }); ok && len(joined.Unwrap()) > 0 {
		return joined.Unwrap()
	}
	return []error{connect.Unwrap()}
}

// decisive returns the error of the attempt that got furthest, and of those the last: an answer of the server says more
// than silence, and silence on a connection more than an address where nothing listens. localhost is two addresses, so the
// last alone would hide what the server said on the other.
func decisive(connect *pgconn.ConnectError) error {
	var (
		found    error
		furthest = -1
	)
	for _, err := range attempts(connect) {
		if progress := progress(connect.Config, err); progress >= furthest {
			found, furthest = err, progress
		}
	}
	return found
}

func progress(config *pgconn.Config, err error) int {
	switch {
	case state(err) != "":
		return 3
	case isTLSRefused(err) && triesWithoutTLS(config):
		return 0 // a reason to go on without TLS, and no other
	case isDial(err):
		return 1
	}
	return 2
}

// isTLSRefused recognises a server that does not offer TLS. pgx has no value for it.
func isTLSRefused(err error) bool {
	return strings.Contains(err.Error(), "server refused TLS connection")
}

func triesWithoutTLS(config *pgconn.Config) bool {
	without := config.TLSConfig == nil
	for _, fallback := range config.Fallbacks {
		without = without || fallback.TLSConfig == nil
	}
	return without
}

// isDial reports whether there was no connection. pgx keeps nothing but this of a dial that ran out of time.
func isDial(err error) bool {
	return strings.Contains(err.Error(), "): dial error: ") || !strings.Contains(err.Error(), "): ")
}
