package sqltest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
)

// keys differ from each other in ways that a column, a collation or a statement may overlook. Those that are cut to the
// length of the column begin with the test's prefix.
var keys = map[string][]string{
	"Long":        {strings.Repeat("k", 299) + "1", strings.Repeat("k", 299) + "2", strings.Repeat("k", 299)},
	"Longest":     {strings.Repeat("家", loki.MaxKeyLength), strings.Repeat("家", loki.MaxKeyLength-1) + "k"},
	"LetterCase":  {"Orders", "orders", "ORDERS"},
	"Accents":     {"resume", "résumé", "re\u0301sume\u0301", "straße", "strasse"},
	"Alphabets":   {"дом", "том", "дым", "???", "家庭", "家族", "𐍈𐍉", "𐍉𐍈"},
	"Blanks":      {"a", " a", "a b", "ab", "a\u00a0", "a\t", "a\n", "\n"},
	"Punctuation": {"it's", "its", "it''s", `a"b`, "a]b", "a--b", "a%b", "a_b", `a\b`, `a\\b`, "$1", "@p1", "?"},
	"Hyphens":     {"co-op", "coop"},
	"Widths":      {"ｱ", "ア", "あ"},
	"Fences":      {"fence", "a\x1f", "fence:\x1f"},
}

// Keys that differ in anything are different locks, and are stored verbatim.
func testKeys(t *testing.T, s *Store, keys []string) {
	var claims []loki.Claim
	for _, key := range keys {
		if excess := len([]rune(s.Prefix+key)) - loki.MaxKeyLength; excess > 0 {
			key = string([]rune(key)[excess:])
		}
		c := s.Claim(key)
		s.MustGrant(t, c)
		claims = append(claims, c)
	}
	require.Equal(t, len(keys), s.Count(t))
	for _, c := range claims {
		var stored string
		s.Get(t, &stored, s.Key, c.Token)
		require.Equal(t, c.Key, stored)
		require.Equal(t, c.Holder, s.MustBeBusy(t, s.Claim(strings.TrimPrefix(c.Key, s.Prefix))).ID, "each blocks its own twin")
		s.MustRelease(t, c)
	}
	require.Zero(t, s.Count(t))
}
