package sqlhandler_test

import (
	"errors"
	"fmt"

	"github.com/lokilock/loki/sqlhandler"
)

// A store is its statements and what its errors mean.
func ExampleNew() {
	errDuplicate := errors.New("as the driver of the store has it")
	key := func(c sqlhandler.Call) []any { return []any{c.Key} }
	claim := func(c sqlhandler.Call) []any {
		return []any{c.Key, c.Token, c.Holder, sqlhandler.Milliseconds(c.Expiry), c.Fence, c.Supersedes}
	}
	handler := sqlhandler.NewBase(nil /* a *sql.DB */, sqlhandler.Dialect{
		Name: "storehandler", Table: `"locks"`, MaxKey: 400, MaxToken: 128,
		Grant:   sqlhandler.Statement{Text: "SELECT * FROM lock_grant($1, $2, $3, $4, $5, $6)", Args: claim},
		Extend:  sqlhandler.Statement{Text: "SELECT lock_extend($1, $2, $3, $4, $5, $6)", Args: claim},
		Release: sqlhandler.Statement{Text: "SELECT lock_release($1, $2, $3, $4, $5, $6)", Args: claim},
		Inspect: sqlhandler.Statement{Text: "SELECT * FROM lock_inspect($1)", Args: key},
		Judge: func(err error) (sqlhandler.Verdict, string) {
			if errors.Is(err, errDuplicate) {
				return sqlhandler.VerdictRetry, ""
			}
			return sqlhandler.VerdictUnknown, ""
		},
	})
	fmt.Println(handler.Validate())
	// Output: storehandler: the database is nil: open one and give it to New
}
