package sqlhandler

// This file is the history of a key, for people and tools that look.

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/lokilock/loki"
)

// Outcome is what became of a claim.
type Outcome string

// Outcomes are what a store's history tells, in these words.
const (
	Held       Outcome = "held"       // it holds
	Released   Outcome = "released"   // it was released in time, and what ran under it ended well, as far as it told
	Failed     Outcome = "failed"     // it was released in time, and [loki.Claim.Failed] said that what ran did not end well
	Expired    Outcome = "expired"    // nobody renewed it in time, whether it was released later or not
	Superseded Outcome = "superseded" // another one replaced it that knew it to be over; see [loki.Claim.Supersedes]
)

// Run is one claim as a history tells it.
type Run struct {
	Token, Holder string

	// Fence is the one that the claim has in this store. Where another store granted first and this one was told of it, as
	// the secondary is under loki.MirrorAsync, the job saw the fence of that one: this is at least as large, and as a rule
	// larger. So a fence that was written with data may be that of no Run; go by holder and time as well.
	Fence int64

	// Since and Until are when the claim was granted and when it ended, by the store's clock. Until is its expiry while it
	// holds, and if it expired. A store may round Since by a few milliseconds. Zero where it does not know.
	Since, Until time.Time

	Outcome Outcome
}

// History tells of the latest claims of key, the newest first, limit at most. The first of them is the one that holds, if
// one does. It matches [errors.ErrUnsupported] if the handler keeps none.
//
// The Locker never asks. A run is in it from its grant on, and leaves it some time after it ended when it has become older
// than the handler was told to keep it.
func (h *Handler) History(ctx context.Context, key string, limit int) ([]Run, error) {
	var runs []Run
	err := h.do(ctx, "history", key, func() error {
		if h.dialect.History.Text == "" {
			return fmt.Errorf("no history is kept: make the handler with WithHistory, if its package has that option, or give its dialect a History: %w", errors.ErrUnsupported)
		}
		if limit <= 0 {
			return fmt.Errorf("%d runs were asked for: ask for one at least", limit)
		}
		if err := h.checkKey(key); err != nil {
			return err
		}
		runs = nil
		call := h.call(loki.Claim{Key: key})
		call.Limit = limit
		return h.dialect.History.each(ctx, h.connect(ctx), call, func(rows *sql.Rows) error {
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

// KeepSeconds is how long ended runs are kept, as a statement takes it: keep rounded up to the second. One that cannot work
// is an error for [Dialect.Mistake].
func KeepSeconds(keep time.Duration) (int64, error) {
	if keep <= 0 || keep > MaxExpiry {
		return 0, fmt.Errorf("the history is to be kept for %v: that must be positive and at most %v; leave the option out to keep none", keep, MaxExpiry)
	}
	return Seconds(keep), nil
}
