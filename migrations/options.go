package migrations

// This file is what can be chosen: the same as for the handler.

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
type Option func(*mssqlname.Table)

// WithTable names the table. It is quoted as it is: one name, without the schema and without brackets. At most 125
// UTF-16 units, so that the primary key can be named after it.
func WithTable(name string) Option {
	return func(t *mssqlname.Table) { t.Name = name }
}

// WithSchema names the schema that the table is in, quoted as it is. The schema has to exist.
func WithSchema(name string) Option {
	return func(t *mssqlname.Table) { t.Schema = name }
}

// choose applies opts to the defaults.
func choose(opts []Option) (mssqlname.Table, error) {
	t := mssqlname.Default()
	var mistakes []error
	for i, o := range opts {
		if o == nil {
			mistakes = append(mistakes, fmt.Errorf("option %d is nil", i+1))
			continue
		}
		o(&t)
	}
	if err := errors.Join(append(mistakes, t.Validate())...); err != nil {
		return t, fmt.Errorf("migrations: %w", err)
	}
	return t, nil
}
