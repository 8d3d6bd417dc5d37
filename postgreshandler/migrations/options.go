package migrations

import (
	"errors"
	"fmt"

	"github.com/lokilock/loki/postgreshandler/internal/postgresname"
)

// The table that is made unless [WithSchema] and [WithTable] say otherwise. Package postgreshandler has the same defaults.
const (
	DefaultSchema = postgresname.DefaultSchema
	DefaultTable  = postgresname.DefaultTable
)

// Option is a choice for [Apply] and [Script].
type Option func(*settings)

type settings struct {
	table   postgresname.Table
	history bool
}

// WithTable names the table. It is quoted as it is: one name, without the schema and without quotes. At most 49 bytes, so
// that the table of the history, and its index, can be named after it.
func WithTable(name string) Option {
	return func(s *settings) { s.table.Name = name }
}

// WithSchema names the schema that the table is in, quoted as it is. The schema has to exist.
func WithSchema(name string) Option {
	return func(s *settings) { s.table.Schema = name }
}

// WithHistory adds the table of the history, which a handler that was made with WithHistory needs. It is named like the
// first with "_history" after it.
func WithHistory() Option {
	return func(s *settings) { s.history = true }
}

// choose applies opts to the defaults.
func choose(opts []Option) (settings, error) {
	s := settings{table: postgresname.Default()}
	var errs []error
	for i, o := range opts {
		if o == nil {
			errs = append(errs, fmt.Errorf("option %d is nil", i+1))
			continue
		}
		o(&s)
	}
	if err := errors.Join(append(errs, s.table.Validate())...); err != nil {
		return s, fmt.Errorf("migrations: %w", err)
	}
	return s, nil
}
