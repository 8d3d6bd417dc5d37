package loki

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// What a store or a caller made may be of any length and may steer a terminal, or forge a line of a log. So every text that
// people read quotes names, escapes what does not print, and cuts both.
const (
	maxNameText  = 200  // characters of a key, of a holder, of an occurrence
	maxErrorText = 1000 // characters of an error, whose last words are often the advice
)

// quoted returns s between quotes.
func quoted(s string) string {
	start, cut := cutAfter(s, maxNameText)
	if cut == "" {
		return strconv.Quote(s)
	}
	return strconv.Quote(start) + cut
}

// oneLine returns err's text as one line: joined errors stand on lines of their own.
func oneLine(err error) string {
	s, cut := cutAfter(strings.TrimSpace(err.Error()), maxErrorText)
	if !strings.ContainsFunc(s, unprintable) {
		return s + cut
	}
	var b strings.Builder
	for _, r := range strings.ReplaceAll(s, "\n", "; ") {
		if unprintable(r) {
			escaped := strconv.QuoteRune(r)
			b.WriteString(escaped[1 : len(escaped)-1])
		} else {
			b.WriteRune(r)
		}
	}
	return b.String() + cut
}

// unprintable includes what a byte that is no UTF-8 is read as.
func unprintable(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) || invisible(r) }

// cutAfter returns the first n characters of s, and what to say of the rest: nothing if there is none.
func cutAfter(s string, n int) (start, rest string) {
	for i := range s {
		if n--; n < 0 {
			return s[:i], fmt.Sprintf("... (%d bytes)", len(s))
		}
	}
	return s, ""
}

// invisible reports whether r leaves no mark of its own, so that two keys which differ in it look the same: control and
// format characters (zero width, byte order mark, bidirectional control), line and paragraph separators, variation
// selectors and fillers. Characters for private use and those that are not assigned yet are shown as a box at least, and
// which those are depends on the version of Unicode: they are not refused.
func invisible(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point)
}
