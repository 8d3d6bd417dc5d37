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

// The stores, as loki names them in events and outcomes. See [Server] for what a primary may consist of.
const (
	Primary   = "primary"
	Secondary = "secondary"
)

// Server is the name of a server of a quorum, from 1, as its votes have it.
func Server(n int) string { return fmt.Sprint("server ", n) }

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

// The kinds of faults. The first ones meet a process, the next ones the way to a store or to one server of a quorum, or the
// client's pool of connections to it, the last ones the primary's server or the one of a quorum that Store names.
const (
	Kill = "kill" // SIGKILL; over when the worker has been started again
	Stop = "stop" // SIGSTOP; over with SIGCONT

	Cut        = "cut"        // connections are reset
	Hole       = "black hole" // nothing is answered, and what was sent arrives when it is over
	Slow       = "slow"       // answers are held back
	LostReply  = "lost reply" // the next request is carried out, and its reply lost with the connection
	Disconnect = "disconnect" // all connections are reset, once
	Forget     = "forget"     // all connections go dead in silence, once, and for good; new ones are served
	Full       = "full pool"  // the worker's application holds every connection of the client's pool

	Freeze  = "freeze"        // SIGSTOP for the server
	Crash   = "crash"         // the server is killed; over when it is back, with all that it had
	Restart = "restart empty" // the server is killed; over when it is back, without a key: in a quorum after all were over
	Promote = "promote"       // a replica stops following; over when it has taken the primary's place
)

// MeetsServer reports whether faults of a kind meet a server, and not the way to it or a process.
func MeetsServer(kind string) bool {
	return kind == Freeze || kind == Crash || kind == Restart || kind == Promote
}

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
	Lossy    bool          `json:"lossy"`            // the primary may forget, or servers of a quorum what is over
	Quorum   int           `json:"quorum,omitempty"` // how many servers the primary consists of; 0: one, with a replica
	MaxFault time.Duration `json:"maxFault"`         // no fault lasts longer
	Stores   string        `json:"stores"`           // for people
}

// keeps reports whether the primary as a whole keeps what it has promised. A majority of a quorum always does.
func (s Setting) keeps() bool { return !s.Lossy || s.Quorum > 0 }

// fences reports whether a store numbers its claims. The servers of a quorum could not agree on a number.
func (s Setting) fences(store string) bool { return s.Quorum == 0 || store == Secondary }

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
