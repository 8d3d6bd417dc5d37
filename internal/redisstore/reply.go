package redisstore

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/lokilock/loki"
)

// The scripts answer with what is stored, and it is taken apart here: the server, which serves one at a time, has better
// to do.

// unknownHolder is the name of who holds a lock with LokiNet's key at which there is no claim of ours. The value itself may
// be an application's own, which is not to end up in a log.
const unknownHolder = "LokiNet, or a value that is not a lock's"

// errForeign is what the scripts answer where something else is stored than a lock.
var errForeign error = replyError("FOREIGN the value is not a claim")

// parseGrant reads the result of grant.lua.
func (n naming) parseGrant(reply any) (grant loki.Grant, owner string, err error) {
	switch reply := reply.(type) {
	case int64:
		if reply >= 0 {
			return loki.Grant{Held: true, Fence: reply}, "", nil
		}
	case []any:
		switch len(reply) {
		case 2:
			fence, ok1 := reply[0].(int64)
			released, ok2 := reply[1].(string)
			if ok1 && ok2 && fence >= 0 {
				return loki.Grant{Held: true, Fence: fence, Released: released}, "", nil
			}
		case 4:
			past, ok1 := reply[1].(string)
			micros, ok2 := reply[3].(int64)
			if !ok1 || !ok2 {
				break
			}
			if grant.HeldBy, owner, err = n.parseHolder(reply[0], reply[2], micros); err != nil {
				return loki.Grant{}, "", err
			}
			if grant.Released, err = parseReleased(past, micros); err != nil {
				return loki.Grant{}, "", err
			}
			return grant, owner, nil
		}
	}
	return loki.Grant{}, "", malformed(reply)
}

// parseInspected reads the result of inspect.lua.
func (n naming) parseInspected(reply any) (holder loki.Holder, owner string, held bool, err error) {
	values, ok := reply.([]any)
	switch {
	case ok && len(values) == 0:
		return loki.Holder{}, "", false, nil
	case ok && len(values) == 3:
		if micros, ok := values[2].(int64); ok {
			holder, owner, err = n.parseHolder(values[0], values[1], micros)
			return holder, owner, true, err
		}
	}
	return loki.Holder{}, "", false, malformed(reply)
}

// parseHolder reads a lock's value, its PTTL, and the server's clock. With LokiNet's keys the value may be anything.
func (n naming) parseHolder(value, pttl any, micros int64) (holder loki.Holder, owner string, err error) {
	text, ok1 := value.(string)
	left, ok2 := pttl.(int64)
	if !ok1 || !ok2 {
		return loki.Holder{}, "", malformed([]any{value, pttl, micros})
	}
	owner, rest, ok1 := strings.Cut(text, " ")
	fence, rest, ok2 := strings.Cut(rest, " ")
	since, name, ok3 := strings.Cut(rest, " ")
	ms, ok4 := parseDigits(since)
	if _, ok := parseDigits(fence); ok && ok1 && ok2 && ok3 && ok4 && owner != "" {
		holder = loki.Holder{ID: name, Since: time.UnixMilli(ms)}
	} else if n.lokiNet {
		holder, owner = loki.Holder{ID: unknownHolder}, text
	} else {
		return loki.Holder{}, "", errForeign
	}
	if left >= 0 { // else it has no expiry
		holder.Until = time.UnixMilli(micros/1000 + left)
		// A key lives until its last ms is over, so there is one more left than Redis says, and never zero.
		holder.Left = time.Duration(min(left+1, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
	}
	return holder, owner, nil
}

// parseReleased reads a companion's value, which is empty if there is none, for the token that it remembers.
func parseReleased(value string, micros int64) (token string, err error) {
	if value == "" {
		return "", nil
	}
	fence, rest, remembers := strings.Cut(value, " ")
	if _, ok := parseDigits(fence); !ok {
		return "", errForeign
	}
	if !remembers {
		return "", nil
	}
	until, token, ok := strings.Cut(rest, " ")
	ms, isTime := parseDigits(until)
	if !ok || !isTime || token == "" || strings.Contains(token, " ") {
		return "", errForeign
	}
	if ms <= micros/1000 {
		return "", nil
	}
	return token, nil
}

// parseDigits reads a number without a sign.
func parseDigits(s string) (int64, bool) {
	n, err := strconv.ParseUint(s, 10, 63)
	return int64(n), err == nil //nolint:gosec // of 63 bits
}

// parseYes reads the result of a script that answers 1 or 0.
func parseYes(reply any) (bool, error) {
	if n, ok := reply.(int64); ok && (n == 0 || n == 1) {
		return n == 1, nil
	}
	return false, malformed(reply)
}

func malformed(reply any) error {
	// It is not repeated: there may be an owner token in it.
	values, ok := reply.([]any)
	if !ok {
		values = []any{reply}
	}
	return fmt.Errorf("the server's answer of %d values is not one of the script's: is something between it and the client?", len(values))
}
