package postgreshandler

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lokilock/loki/postgreshandler/internal/postgresname"
	"github.com/lokilock/loki/sqlhandler"
)

// The table that is used unless [WithSchema] and [WithTable] say otherwise. Package migrations has the same defaults.
const (
	DefaultSchema = postgresname.DefaultSchema
	DefaultTable  = postgresname.DefaultTable
)

// Option is a choice for [New] and [Open], and for [Check].
type Option func(*settings)

type settings struct {
	table       postgresname.Table
	keepSeconds int64           // of the history; none is kept if it is zero
	listen      *pgx.ConnConfig // where to listen, if not where the pool is connected to
	silent      bool            // neither notifies nor listens
	patience    patience
	errs        []error
	err         error // all of them
}

func (s settings) keepsHistory() bool { return s.keepSeconds > 0 }

// WithTable names the table. It is quoted as it is: one name, without the schema and without quotes. At most 49 bytes, so
// that the table of the history, and its index, can be named after it.
func WithTable(name string) Option {
	return func(s *settings) { s.table.Name = name }
}

// WithSchema names the schema that the table is in, quoted as it is.
func WithSchema(name string) Option {
	return func(s *settings) { s.table.Schema = name }
}

// WithHistory keeps, for each claim that has ended, a row that says who held the key, from when to when and with what
// outcome, for about keep, which is rounded up to the second. [Handler.History] reads them, and SQL can.
//
// They are in a second table, named like the first with "_history" after it, which package migrations makes with
// migrations.WithHistory, and for which the login needs the same rights. Each is written by the very statement that ends
// the claim. Releases remove a few that are older than keep.
//
// Handlers of one table should all have the option, or none: what ends by one without it leaves no trace.
func WithHistory(keep time.Duration) Option {
	return func(s *settings) {
		seconds, err := sqlhandler.Seconds(keep)
		if err != nil {
			s.errs = append(s.errs, fmt.Errorf("WithHistory: %w; leave the option out to keep none", err))
		}
		s.keepSeconds = seconds
	}
}

// WithListenDSN says where [Handler.Notify] is to connect to, in pgx's words, if not to where the pool is connected: to
// the server itself, or to a port where the pooler works by sessions, if the pool goes through a pooler that works by
// transactions, or if a wrapper hides the driver. It has to be the same database.
func WithListenDSN(dsn string) Option {
	return func(s *settings) {
		config, err := parseDSN(dsn)
		if err != nil {
			s.errs = append(s.errs, fmt.Errorf("WithListenDSN: %w", err))
		}
		s.listen = config
	}
}

// WithoutNotify makes releases notify nobody, and waiters poll: [Handler.Notify] returns an error that matches
// [errors.ErrUnsupported]. It is for a server whose sessions notify so often (NOTIFY) that they wait for each other, since
// PostgreSQL has them commit one after the other. All instances should have the option, or none.
func WithoutNotify() Option {
	return func(s *settings) { s.silent = true }
}

// choose applies opts to the defaults.
func choose(opts []Option) settings {
	s := settings{table: postgresname.Default(), patience: defaultPatience}
	for i, o := range opts {
		if o == nil {
			s.errs = append(s.errs, fmt.Errorf("option %d is nil", i+1))
			continue
		}
		o(&s)
	}
	if err := s.table.Validate(); err != nil {
		s.errs = append(s.errs, err)
	}
	if len(s.errs) > 0 {
		s.err = fmt.Errorf("postgreshandler: %w", errors.Join(s.errs...))
	}
	return s
}
