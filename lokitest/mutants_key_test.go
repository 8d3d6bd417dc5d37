package lokitest_test

import (
	"context"
	"errors"
	"net/url"
	"strings"

	"github.com/lokilock/loki"
)

// ascii is what a varchar column keeps.
func ascii(s string) string {
	return strings.Map(func(r rune) rune {
		if r > 127 {
			return '?'
		}
		return r
	}, s)
}

var keyMutants = map[string]map[string]func(*mutant){
	"key-letter-case": {
		"case-insensitive collation": onKey(strings.ToLower),
	},
	"key-accents": {
		"composes":                     onKey(strings.NewReplacer("e\u0301", "\u00e9").Replace),
		"accent-insensitive collation": onKey(strings.NewReplacer("\u00e9", "e").Replace),
		"normalizes compatibility":     onKey(strings.NewReplacer("\u212b", "\u00c5").Replace),
		"sharp s":                      onKey(strings.NewReplacer("\u00df", "ss").Replace),
		"ligatures":                    onKey(strings.NewReplacer("\ufb01", "fi").Replace),
	},
	"key-blanks": {
		"trims":          onKey(strings.TrimSpace),
		"trims in front": onKey(func(key string) string { return strings.TrimLeft(key, " ") }),
		"joins fields":   onKey(func(key string) string { return strings.Join(strings.Fields(key), " ") }),
		"underlines":     onKey(func(key string) string { return strings.ReplaceAll(key, " ", "_") }),
	},
	"key-punctuation": {
		"hashes what is in braces": onKey(func(key string) string {
			if _, rest, ok := strings.Cut(key, "{"); ok {
				if tag, _, ok := strings.Cut(rest, "}"); ok {
					return tag
				}
			}
			return key
		}),
		"decodes": onKey(func(key string) string {
			if plain, err := url.PathUnescape(key); err == nil {
				return plain
			}
			return key
		}),
		"strips quotes":             onKey(strings.NewReplacer("'", "").Replace),
		"slash and colon are alike": onKey(strings.NewReplacer("/", ":").Replace),
	},
	"key-alphabets": {
		"varchar": onKey(ascii),
		"no surrogates": onKey(func(key string) string {
			return strings.Map(func(r rune) rune {
				if r > 0xffff {
					return '\ufffd'
				}
				return r
			}, key)
		}),
	},
	"key-prefixes": {
		"cut at the slash": onKey(func(key string) string {
			service, _, _ := strings.Cut(key, "/")
			return service
		}),
		"the fence's key is a lock's": onKey(func(key string) string { return strings.TrimSuffix(key, ":fence") }),
	},
	"key-length": {
		"cut at 255 bytes": onKey(func(key string) string { return key[:min(len(key), 255)] }),
		"cut at 399 units": onKey(func(key string) string {
			if runes := []rune(key); len(runes) > 399 {
				return string(runes[:399])
			}
			return key
		}),
		"refuses 900 bytes": func(m *mutant) {
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				if len(c.Key) > 700 {
					return loki.Grant{}, errors.New("the index row is too long")
				}
				return healthy(ctx, c)
			}
		},
	},
}

var mirrorMutants = map[string]map[string]func(*mutant){
	"superseded-is-replaced": {
		"ignores it": onClaim(func(c *loki.Claim) { c.Supersedes = "" }),
	},
	"superseded-and-no-other": {
		"replaces whoever holds": func(m *mutant) {
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				if c.Supersedes != "" {
					return m.steal(ctx, c)
				}
				return healthy(ctx, c)
			}
		},
		"replaces it under every key": func(m *mutant) {
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				for _, key := range m.store.HeldKeys() {
					_ = m.store.Release(ctx, loki.Claim{Key: key, Token: c.Supersedes})
				}
				return healthy(ctx, c)
			}
		},
	},
	"mirrored-is-held-alike": {
		"takes what is held": func(m *mutant) {
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				if c.Mirrored {
					return m.steal(ctx, c)
				}
				return healthy(ctx, c)
			}
		},
		"is not released": func(m *mutant) {
			healthy := m.release
			m.release = func(ctx context.Context, c loki.Claim) error {
				if c.Mirrored {
					return nil
				}
				return healthy(ctx, c)
			}
		},
		"is not recorded": func(m *mutant) {
			healthy := m.grant
			m.grant = func(ctx context.Context, c loki.Claim) (loki.Grant, error) {
				g, err := healthy(ctx, c)
				if c.Mirrored && g.Held {
					_ = m.store.Release(ctx, c)
				}
				return g, err
			}
		},
	},
}
