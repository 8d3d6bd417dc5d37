package mssqlhandler

import (
	"errors"
	"fmt"
	"time"

	"github.com/lokilock/loki/internal/mssqlname"
	"github.com/lokilock/loki/sqlhandler"
)

// The table that is used unless [WithSchema] and [WithTable] say otherwise. Package migrations has the same defaults.
const (
	DefaultSchema = mssqlname.DefaultSchema
	DefaultTable  = mssqlname.DefaultTable
)

// Option is a choice for [New] and [Open].
type Option func(*settings)

type settings struct {
	table          mssqlname.Table
	lokinetSeconds int64
	keepSeconds    int64 // of the history; none is kept if it is zero
	errs           []error
	err            error // all of them
}

func (s settings) keepsHistory() bool { return s.keepSeconds > 0 }

// lokinetNever stands for rows of LokiNet that stay until they are deleted.
const lokinetNever = -1

// WithTable names the table. It is quoted as it is: one name, without the schema and without brackets. At most 118
// UTF-16 units, so that the primary keys can be named after it.
func WithTable(name string) Option {
	return func(s *settings) { s.table.Name = name }
}

// WithSchema names the schema that the table is in, quoted as it is.
func WithSchema(name string) Option {
	return func(s *settings) { s.table.Schema = name }
}

// WithLokiNetExpiry sets how old a row that LokiNet wrote may be before it counts as left by a process that died, and is
// replaced. Without it such a row is busy until it is deleted, as it is for LokiNet. d is rounded up to the second and must be
// longer than any LokiNet job runs, since LokiNet never renews.
//
// LokiNet dates its rows by the local clock of the machine it runs on, without a zone. This package assumes that the
// zone is the database server's, or UTC; a row is over when it is older than d by both. A LokiNet in a zone to the west
// of both writes rows that look older than they are: add the difference to d, and an hour if its zone has summer time.
func WithLokiNetExpiry(d time.Duration) Option {
	return func(s *settings) {
		seconds, err := sqlhandler.Seconds(d)
		if err != nil {
			s.errs = append(s.errs, fmt.Errorf("WithLokiNetExpiry: %w; leave the option out to respect LokiNet's rows until they are deleted", err))
			return
		}
		s.lokinetSeconds = seconds
	}
}

// WithHistory keeps, for each claim that has ended, a row that says who held the key, from when to when and with what
// outcome, for about keep, which is rounded up to the second. [Handler.History] reads them, and SQL can.
//
// They are in a second table, named like the first with "History" after it, which package migrations makes with
// migrations.WithHistory, and for which the login needs SELECT, INSERT and DELETE. Each is written by the very statement
// that ends the claim. Releases remove a few that are older than keep.
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

// choose applies opts to the defaults.
func choose(opts []Option) settings {
	s := settings{table: mssqlname.Default(), lokinetSeconds: lokinetNever}
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
		s.err = fmt.Errorf("mssqlhandler: %w", errors.Join(s.errs...))
	}
	return s
}
