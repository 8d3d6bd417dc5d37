package sqlhandler

import (
	"errors"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/lokilock/loki"
)

// checkClaim refuses what the server could cut or replace, so that two keys, or two tokens, would become one. The Locker
// never makes such a claim: this protects who calls a handler directly. Whatever else is wrong with one the server refuses.
func (b *Base) checkClaim(c loki.Claim) error {
	if c.Token == "" {
		return errors.New("the claim has no token")
	}
	return errors.Join(
		b.checkKey(c.Key),
		b.checkText("token", c.Token, b.dialect.MaxToken),
		b.checkText("superseded token", c.Supersedes, b.dialect.MaxToken),
	)
}

func (b *Base) checkKey(key string) error { return b.checkText("key", key, b.dialect.MaxKey) }

func (b *Base) checkText(what, s string, limit int) error {
	switch {
	case units(s) > limit:
		return fmt.Errorf("the %s is longer than the %d UTF-16 units of its column: %q", what, limit, s)
	case !utf8.ValidString(s):
		return fmt.Errorf("the %s %q is not valid UTF-8", what, s)
	case b.dialect.Refuse == nil:
		return nil
	}
	if why := b.dialect.Refuse(what, s); why != "" {
		return fmt.Errorf("the %s %q %s", what, s, why)
	}
	return nil
}

// units returns the length that SQL counts in.
func units(s string) int { return len(utf16.Encode([]rune(s))) }
