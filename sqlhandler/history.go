package sqlhandler

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/lokilock/loki"
)

// RunOutcome is what became of a claim.
type RunOutcome string

// The outcomes, in the words that a store's history has.
const (
	RunHeld       RunOutcome = "held"       // it holds
	RunReleased   RunOutcome = "released"   // it was released, or kept, in time, and what ran under it succeeded, as far as it reported
	RunFailed     RunOutcome = "failed"     // the same with [loki.Claim.Failed]: what ran under it failed
	RunExpired    RunOutcome = "expired"    // it was not renewed in time, whether it was released later or not
	RunSuperseded RunOutcome = "superseded" // another claim replaced it that knew it to be over; see [loki.Claim.Supersedes]
)

// ending returns how what ran under a claim ended, if that is known.
func ending(c loki.Claim, known bool) RunOutcome {
	switch {
	case !known:
		return ""
	case c.Failed:
		return RunFailed
	}
	return RunReleased
}

// Run is one claim in a history.
type Run struct {
	Token, Holder string

	// Fence is the claim's fencing token in this store. A job whose primary is another store saw that one's, and this is at
	// least as large, as a rule larger. So a fencing token that was written with data may be that of no Run: compare holder
	// and time as well.
	Fence int64

	// Since and Until are when the claim was granted and when it ended, by the store's clock; Until is its expiry while it
	// holds, and if it expired. One that was kept for a minimum hold ended when what ran under it did. A store may round Since by a few milliseconds. Zero if the store does not know.
	Since, Until time.Time

	Outcome RunOutcome
}

// History returns the latest claims of key, the newest first and limit at most. The first one is the one that holds, if
// any. Without a history the error matches [errors.ErrUnsupported].
//
// It is for people and tools: the Locker never calls it. A claim under which nothing ran ([loki.Claim.Unused]) leaves no run. A run is in the history from its grant on, and is removed some time
// after it has become older than the handler keeps runs.
func (b *Base) History(ctx context.Context, key string, limit int) ([]Run, error) {
	var runs []Run
	err := b.do(ctx, "history", key, func() error {
		if b.dialect.History.Text == "" {
			return fmt.Errorf("no history is kept: make the handler with WithHistory if its package has that option, or give its dialect a History: %w", errors.ErrUnsupported)
		}
		if limit <= 0 {
			return fmt.Errorf("%d runs were asked for: ask for one at least", limit)
		}
		if err := b.checkKey(key); err != nil {
			return err
		}
		runs = nil
		call := Call{Claim: loki.Claim{Key: key}}
		call.Limit = limit
		return b.dialect.History.each(ctx, b.connect(ctx), call, func(rows *sql.Rows) error {
			var (
				r             Run
				token, holder sql.NullString
				fence         sql.NullInt64
				since, until  sql.NullInt64
			)
			err := historyAnswer.scan(rows, &token, &holder, &fence, &since, &until, &r.Outcome)
			r.Token, r.Holder, r.Fence, r.Since, r.Until = token.String, holder.String, fence.Int64, instant(since), instant(until)
			runs = append(runs, r)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return runs, nil
}
