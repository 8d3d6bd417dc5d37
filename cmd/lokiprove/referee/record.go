// Package referee judges the history of a proof: what ran, what failed, and whether a promise of loki was broken.
//
// It does not play: it sees records alone, so that a history written by hand, or read from a file, is judged like one that
// has just been made.
package referee

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// The stores, as loki names them in events and outcomes.
const (
	Primary   = "primary"
	Secondary = "secondary"
)

// The modes: one store, or two with the mirror of that name.
const (
	Alone = "alone"
	Async = "async"
	Sync  = "sync"
)

// What a record tells.
type What string

// Records of the proof as a whole, of a worker's process, and of the nemesis.
const (
	Began What = "began" // the proof, with its Setting

	Asked     What = "asked"     // a worker calls ExecuteWithinLock
	Confirmed What = "confirmed" // a store said to a worker that the claim holds: Sent, Expiry
	Ran       What = "ran"       // fn has been called: Fence, Store
	Ended     What = "ended"     // fn is about to return
	Returned  What = "returned"  // the call has returned: Result, Text
	Told      What = "told"      // the observer was told something: Text

	Crashed What = "crashed" // a process ended that nobody had killed: Text
	Hung    What = "hung"    // a process did not end when it was asked to

	Fault What = "fault" // begins: ID, Kind, and whom it meets
	Over  What = "over"  // the fault with this ID is over

	Healed   What = "healed"   // no fault from here on
	Leftover What = "leftover" // a store keeps a claim after the last expiry: Store, Text
)

// The kinds of faults. The first three meet a process, the next ones the way to a store, the last ones the primary itself.
const (
	Kill = "kill" // SIGKILL; over when the worker has been started again
	Stop = "stop" // SIGSTOP; over with SIGCONT

	Cut        = "cut"        // connections are reset
	Hole       = "black hole" // nothing is answered, and what was sent arrives when it is over
	Slow       = "slow"       // answers are held back
	LostReply  = "lost reply" // the next request is carried out, and its reply lost with the connection
	Disconnect = "disconnect" // all connections are reset, once

	Freeze  = "freeze"        // SIGSTOP for the primary's server
	Restart = "restart empty" // the primary is killed; over when it is back, without a key
	Promote = "promote"       // a replica stops following; over when it has taken the primary's place
)

// Results of a call, by the table of package loki.
const (
	OK          = "ok"
	Own         = "own error" // fn's, untouched
	Lost        = "lost"
	Busy        = "busy"
	Unavailable = "unavailable"
	Refused     = "refused"
	CtxEnded    = "ctx ended"
	Other       = "other"
)

// Record is one line of a history. Times are CLOCK_MONOTONIC, which all processes of a machine share, counted from the
// beginning of the proof.
type Record struct {
	At     time.Duration `json:"at"`
	What   What          `json:"what"`
	Worker int           `json:"worker,omitempty"` // from 1; 0 in a fault that meets them all
	Life   int           `json:"life,omitempty"`   // which process of that worker, from 1
	Call   int           `json:"call,omitempty"`   // which call of that process, from 1

	Store  string        `json:"store,omitempty"`
	Op     string        `json:"op,omitempty"`
	Sent   time.Duration `json:"sent,omitempty"` // before the request
	Expiry time.Duration `json:"expiry,omitempty"`
	Fence  int64         `json:"fence,omitempty"`

	Result     string `json:"result,omitempty"`
	Reason     string `json:"reason,omitempty"`     // of a lost lock
	OutcomeRan bool   `json:"outcomeRan,omitempty"` // what Outcome.Ran says
	Text       string `json:"text,omitempty"`

	ID   int    `json:"id,omitempty"`
	Kind string `json:"kind,omitempty"`

	Setting *Setting `json:"setting,omitempty"`
}

// Setting is what a judge has to know of a proof.
type Setting struct {
	Mode     string        `json:"mode"`
	Expiry   time.Duration `json:"expiry"`
	Workers  int           `json:"workers"`
	Seed     uint64        `json:"seed"`
	Lossy    bool          `json:"lossy"`    // the primary may forget
	MaxFault time.Duration `json:"maxFault"` // no fault lasts longer
	Stores   string        `json:"stores"`   // for people
}

// Read reads a history that was written as JSON lines.
func Read(r io.Reader) ([]Record, error) {
	var records []Record
	for d := json.NewDecoder(r); ; {
		var rec Record
		switch err := d.Decode(&rec); {
		case errors.Is(err, io.EOF):
			return records, nil
		case err != nil:
			return nil, fmt.Errorf("record %d of the history is not readable: %w", len(records)+1, err)
		}
		records = append(records, rec)
	}
}
