package sqlhandler

// This file is what is refused because the server would cut it, replace it or take it for something else.

import (
	"errors"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/lokilock/loki"
)

// checkClaim refuses what could not be recorded as asked.
func (h *Handler) checkClaim(c loki.Claim) error {
	if err := h.checkHeld(c); err != nil {
		return err
	}
	if c.Expiry <= 0 || c.Expiry > MaxExpiry {
		return fmt.Errorf("the claim's expiry is %v: it must be positive and at most %v", c.Expiry, MaxExpiry)
	}
	return h.refuse("holder", c.Holder)
}

// checkHeld refuses a claim that no row can be of.
func (h *Handler) checkHeld(c loki.Claim) error {
	mistakes := []error{h.checkKey(c.Key), h.checkText("token", c.Token, h.dialect.MaxToken)}
	if c.Supersedes != "" {
		mistakes = append(mistakes, h.checkText("superseded token", c.Supersedes, h.dialect.MaxToken))
	}
	return errors.Join(mistakes...)
}

// checkKey counts what a key may get when it is stored.
func (h *Handler) checkKey(key string) error {
	return h.checkText("key", key, h.dialect.MaxKey-units(h.stored(key))+units(key))
}

func (h *Handler) stored(key string) string {
	if h.dialect.StoredKey == nil {
		return key
	}
	return h.dialect.StoredKey(key)
}

func (h *Handler) checkText(what, s string, limit int) error {
	switch {
	case s == "":
		return fmt.Errorf("the claim has no %s", what)
	case units(s) > limit:
		return fmt.Errorf("the %s is longer than the %d UTF-16 units of its column: %q", what, limit, s)
	}
	return h.refuse(what, s)
}

func (h *Handler) refuse(what, s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("the %s %q is not valid UTF-8", what, s)
	}
	if h.dialect.Refuse != nil {
		if why := h.dialect.Refuse(what, s); why != "" {
			return fmt.Errorf("the %s %q %s", what, s, why)
		}
	}
	return nil
}

// units is the length that SQL counts in.
func units(s string) int { return len(utf16.Encode([]rune(s))) }
