package lokitest

import (
	"strings"
	"unicode/utf16"

	"github.com/lokilock/loki"
)

// distinct makes a clause whose keys all differ. Each is a template: the prefix of the run takes the place of the "@".
func distinct(name string, templates ...string) clause {
	return clause{
		name: name,
		law:  "a handler stores Key verbatim, or in a form from which no two keys can collide.",
		check: func(p *probe) {
			var keys []string
			for _, template := range templates {
				keys = append(keys, strings.Replace(template, "@", p.prefix, 1))
			}
			p.mustBeDistinct(keys)
		},
	}
}

// mustBeDistinct locks all keys, then frees them one by one.
func (p *probe) mustBeDistinct(keys []string) {
	var claims []loki.Claim
	for i, key := range keys {
		c := p.claim(key, lasting)
		if !p.lock(c).held {
			p.fail("Lock of %+q was refused although nobody held it: other keys, and no more, were held: %+q.", key, keys[:i])
		}
		claims = append(claims, c)
	}
	for _, c := range claims {
		p.mustBeHeld(c.Key, "although the first one holds it; keys that look like it were held or released meanwhile")
		p.release(c)
		p.mustBeFree(c.Key, "after its holder had released it; keys that look like it were held meanwhile")
	}
}

var keyClauses = []clause{
	distinct("key-letter-case", "@orders", "@Orders", "@ORDERS"),
	distinct("key-accents",
		"@cafe", "@caf\u00e9", "@cafe\u0301", // composed and decomposed look the same
		"@\u00c5", "@A\u030a", "@\u212b", // A with a ring, and the unit of length
		"@strasse", "@stra\u00dfe", "@\ufb01", "@fi"),
	// No key ends in a blank: the Locker refuses it, since SQL compares without the blanks at the end.
	distinct("key-blanks", "@a b", "@a  b", "@ab", " @a b", "@a\u00a0b", "@a_b"),
	distinct("key-punctuation",
		"@{a}b", "@{a}c", "{@a}", "@a", // a Redis cluster hashes what is in braces
		"@a/b", "@a%2Fb", "@a%2fb", "@a%252Fb", "@%7Ba%7Db", "@a:b", "@a*b", "@a?b", "@a'b", "@a''b", `@a"b`, `@a\b`, "@a[b]", "@a-b", "@a%", "@a_"),
	distinct("key-alphabets",
		"@\u0441\u043a\u043b\u0430\u0434", "@\u0441\u0447\u0451\u0442\u0430", "@?????", // Cyrillic, both of five letters
		"@\u65e5\u672c", "@\u4e2d\u56fd", "@\U0001f512", "@\U0001f513", "@\ufffd"),
	distinct("key-prefixes", "@a", "@aa", "@aaa", "@a/a", "@a/a/a", "@a:fence"),
	{
		name: "key-length",
		law:  "At most [MaxKeyLength] UTF-16 units.",
		check: func(p *probe) {
			p.mustBeDistinct([]string{p.longestKey("x", "1"), p.longestKey("x", "2")})
			p.mustBeDistinct([]string{p.longestKey("\u0436", "1"), p.longestKey("\u0436", "2")})
			p.mustBeDistinct([]string{p.longestKey("\U0001f512", "1"), p.longestKey("\U0001f512", "2")})
		},
	},
}

// longestKey fills the room between the prefix and the end with filler.
func (p *probe) longestKey(filler, end string) string {
	units := func(s string) int { return len(utf16.Encode([]rune(s))) }
	room := loki.MaxKeyLength - units(p.prefix) - units(end)
	return p.prefix + strings.Repeat(filler, room/units(filler)) + strings.Repeat("x", room%units(filler)) + end
}
