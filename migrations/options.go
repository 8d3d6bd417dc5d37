package migrations

import (
	"errors"
	"fmt"

	"github.com/lokilock/loki/internal/mssqlname"
)

// The table that is made unless [WithSchema] and [WithTable] say otherwise. Package mssqlhandler has the same defaults.
const (
	DefaultSchema = mssqlname.DefaultSchema
	DefaultTable  = mssqlname.DefaultTable
)

// Option is a choice for [Apply] and [Script].
type Option func(*settings)

type settings struct {
	table   mssqlname.Table
	history bool
}

// WithTable names the table. It is quoted as it is: one name, without the schema and without brackets. At most 118
// UTF-16 units, so that the table of the history and the primary keys can be named after it.
func WithTable(name string) Option {
	return func(s *settings) { s.table.Name = name }
}

// WithSchema names the schema that the table is in, quoted as it is. The schema has to exist.
func WithSchema(name string) Option {
	return func(s *settings) { s.table.Schema = name }
}

// WithHistory makes the second table as well, which handlers with mssqlhandler.WithHistory write to: migration 000003.
func WithHistory() Option {
	return func(s *settings) { s.history = true }
}

// choose applies opts to the defaults.
func choose(opts []Option) (settings, error) {
	s := settings{table: mssqlname.Default()}
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
