package loki

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
)

// maxProblems bounds the memory of what has been reported. When it is full everything is news again.
const maxProblems = 64

// problem is something that a store keeps doing and that has been reported: a permanent error, for example.
type problem struct {
	op, key string    // of the call that met it first
	met     time.Time // when it was met last
	passed  bool      // the operation has worked since, for another key
}

// news reports whether cause should be reported: when it is met for the first time, or again after it was over. It is
// over when the same operation has worked for the same key, or when it has worked for another one and the cause has not
// been met for steadyTime: an error may concern some keys only, and those that met it may never be locked again. A problem of
// no operation (op is empty) is over when it has not been met for so long.
func (h *health) news(cause, op, key string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	if p := h.problems[cause]; p != nil && (!p.passed || now.Sub(p.met) < steadyTime) {
		p.met = now
		return false
	}
	if len(h.problems) >= maxProblems {
		clear(h.problems)
	}
	h.problems[cause] = &problem{op: op, key: key, met: now, passed: op == ""}
	return true
}

// works notes that op was answered without an error.
func (h *health) works(op, key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for cause, p := range h.problems {
		if p.op == op && p.key == key {
			delete(h.problems, cause)
		} else if p.op == op {
			p.passed = true
		}
	}
}

// refused reports a permanent error. Every call that meets it is an event, and the first one is an error for people to see.
func (h *health) refused(ctx context.Context, op, key string, a answer) {
	if errors.Is(a.err, errPanicked) {
		return // reported already
	}
	e := Event{Kind: KindRefused, Level: levelDebug, Handler: h.store.name, Op: op, Key: key, Took: time.Since(a.sent), Err: a.err}
	if h.news(causeOf(handlersOwn(a.err), key), op, key) {
		e.Level = levelError
	}
	if op == opRelease {
		e.Err = h.store.wrap(op, Claim{Key: key}, fmt.Errorf("locks that cannot be released stay held until they expire: %w", handlersOwn(a.err)))
	}
	h.store.events.emit(ctx, e)
}

// causeOf is what the texts of one error have in common, whichever key and operation met it, and whenever. The time, a port,
// the id of a request, the name of a prepared statement and the hash of a script are part of many: so words with digits and
// words that are hexadecimal numbers do not count, nor do those of the key, in whatever way it is quoted.
func causeOf(err error, key string) string {
	wordsOf := func(s string) []string {
		return strings.FieldsFunc(s, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	}
	passing := append(wordsOf(key), opLock, "grant", opExtend, opRelease)
	return strings.Join(slices.DeleteFunc(wordsOf(err.Error()), func(word string) bool {
		return strings.ContainsFunc(word, unicode.IsDigit) || strings.Trim(word, "abcdefABCDEF") == "" || slices.Contains(passing, word)
	}), " ")
}
