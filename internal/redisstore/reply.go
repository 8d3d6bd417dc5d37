package redisstore

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/lokilock/loki"
)

// parseGrant reads the result of grant.lua.
func parseGrant(reply []string) (grant loki.Grant, owner string, err error) {
	switch {
	case len(reply) == 3 && reply[0] == "1":
		grant = loki.Grant{Held: true, Released: reply[1]}
		grant.Fence, err = strconv.ParseInt(reply[2], 10, 64)
	case len(reply) == 7 && reply[0] == "0":
		grant = loki.Grant{Released: reply[1]}
		grant.HeldBy, owner, err = parseHolder(reply[2:])
	default:
		err = errMalformed
	}
	if err != nil {
		return loki.Grant{}, "", malformed(reply)
	}
	return grant, owner, nil
}

// parseHolder reads a holder's name, three numbers of ms, empty where they are not known (since, until and left), and the
// owner token.
func parseHolder(reply []string) (holder loki.Holder, owner string, err error) {
	if len(reply) != 5 {
		return loki.Holder{}, "", errMalformed
	}
	since, err1 := parseTime(reply[1])
	until, err2 := parseTime(reply[2])
	left, err3 := parseNumber(reply[3])
	left = min(left, math.MaxInt64/int64(time.Millisecond))
	return loki.Holder{ID: reply[0], Since: since, Until: until, Left: time.Duration(left) * time.Millisecond}, reply[4], errors.Join(err1, err2, err3)
}

func parseTime(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	ms, err := parseNumber(s)
	return time.UnixMilli(ms), err
}

func parseNumber(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	return strconv.ParseInt(s, 10, 64)
}

var errMalformed = errors.New("not one of the script's")

func malformed(reply []string) error {
	// It is not repeated: there may be an owner token in it.
	return fmt.Errorf("the server's answer of %d values is not one of the script's: is something between it and the client?", len(reply))
}
