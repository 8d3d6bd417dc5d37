package migrations

// This file is what the table has to look like, told by its columns and not by a version somewhere.

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/lokilock/loki/internal/mssqlname"
)

// column is what the catalogue says of a column, or what is needed of it.
type column struct {
	name, kind string
	length     int // in bytes, -1 for max; at least this much is needed
	collation  string
	key        bool
}

// needed are the columns of the table. There may be others, if LokiNet and the handler can leave them out.
var needed = []column{
	{name: "ServiceKey", kind: "nvarchar", length: 800, collation: "BIN2", key: true},
	{name: "CreationDate", kind: "datetime"},
	{name: "Token", kind: "nvarchar", length: 256, collation: "BIN2"},
	{name: "Holder", kind: "nvarchar", length: -1},
	{name: "ExpiresAt", kind: "datetime2"},
	{name: "Fence", kind: "bigint"},
}

// look says what keeps the table from being fit, or nothing if it is.
func look(ctx context.Context, db *sql.DB, table mssqlname.Table) (unfit string, err error) {
	rows, err := db.QueryContext(ctx, table.Fill(fitSQL))
	if err != nil {
		return "", err
	}
	defer rows.Close()
	found := make(map[string]column)
	for rows.Next() {
		var c column
		if err := rows.Scan(&c.name, &c.kind, &c.length, &c.collation, &c.key); err != nil {
			return "", err
		}
		found[strings.ToLower(c.name)] = c // not every server keeps the case of a name
	}
	if err := rows.Err(); err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "there is no such table", nil
	}
	for _, need := range needed {
		c, ok := found[strings.ToLower(need.name)]
		if !ok {
			return fmt.Sprintf("there is no column %s", need.name), nil
		}
		if why := need.differs(c); why != "" {
			return fmt.Sprintf("the column %s %s", need.name, why), nil
		}
	}
	return "", nil
}

func (need column) differs(c column) string {
	switch {
	case c.kind != need.kind:
		return fmt.Sprintf("is a %s, not a %s", c.kind, need.kind)
	case need.length > 0 && c.length != -1 && c.length < need.length, need.length == -1 && c.length != -1:
		return fmt.Sprintf("is too short (%d bytes)", c.length)
	case need.collation != "" && !strings.HasSuffix(strings.ToUpper(c.collation), need.collation):
		return fmt.Sprintf("has the collation %s, not a binary one (%s)", c.collation, need.collation)
	case need.key && !c.key:
		return "is not the primary key"
	}
	return ""
}
