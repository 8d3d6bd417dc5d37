package loki

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// The limits that are checked, and the defaults that a zero stands for.
const (
	// MinExpiry is the shortest expiry a lock may have: below it a renewal could not keep up with a store that is
	// answering normally.
	MinExpiry = 20 * time.Millisecond

	// MaxExpiry is the longest.
	MaxExpiry = 10 * 365 * 24 * time.Hour

	// MaxKeyLength is how long a key may be, in UTF-16 units: the service key, "/" and the resource together, after
	// percent-encoding. It is what an nvarchar column that is a SQL Server primary key can hold with room to spare.
	MaxKeyLength = 400

	// DefaultPrimaryTimeout stands for a zero [Config.PrimaryTimeout].
	DefaultPrimaryTimeout = 500 * time.Millisecond

	// DefaultSecondaryTimeout stands for a zero [Config.SecondaryTimeout].
	DefaultSecondaryTimeout = 3 * time.Second
)

// MirrorMode says when a lock that the primary granted reaches the secondary.
type MirrorMode int

const (
	// MirrorAsync starts fn when the primary grants and writes the lock to the secondary in the background. As a rule that
	// is one round trip an acquisition; it is one to each store while they may disagree about the key, while mirror writes
	// wait, and for an occurrence. For what it costs in safety see the package comment. It is the default.
	MirrorAsync MirrorMode = iota

	// MirrorSync starts fn when both stores hold the lock, or the secondary alone while the primary is unavailable. One round
	// trip to each for an acquisition. Nothing starts without the secondary, and what runs ends when its record there can no
	// longer be renewed.
	MirrorSync
)

// String returns "async" or "sync".
func (m MirrorMode) String() string {
	switch m {
	case MirrorAsync:
		return "async"
	case MirrorSync:
		return "sync"
	}
	return fmt.Sprintf("MirrorMode(%d)", int(m))
}

// Config is what a [Locker] is made of. ServiceKey and Primary are required; a zero elsewhere means the default named
// there. [New] copies it, so that later changes have no effect.
type Config struct {
	// ServiceKey names what is locked; instances that share it, and the stores, exclude each other. It is valid UTF-8 of
	// at most [MaxKeyLength], without blanks at the ends and without invisible characters (control, zero width, byte order
	// mark, bidirectional control, variation selectors).
	ServiceKey string

	// Primary is asked first. It decides as long as it answers; under [MirrorSync] the secondary has to agree.
	Primary LockHandler

	// Secondary records the locks too, and decides while the primary is unavailable. Under [MirrorAsync] it never learns of a
	// lock that is released before its mirror write began. Nil means that there is none.
	Secondary LockHandler

	// Mirror says when the secondary is told. The zero value is [MirrorAsync]. Without a secondary it has no effect.
	Mirror MirrorMode

	// PrimaryTimeout and SecondaryTimeout bound every single call of the handler, whatever its own client's
	// settings, even if it ignores its context. Zero means [DefaultPrimaryTimeout] and [DefaultSecondaryTimeout]. An
	// acquisition gives the primary at most a third of the expiry too, and at most half of what is left of ctx if there is
	// a secondary to go to.
	PrimaryTimeout, SecondaryTimeout time.Duration

	// Holder is what people see as the holder of this Locker's locks, in stores and in busy errors. It identifies
	// nothing, and follows the rules of a service key. Empty means the host's name and the process id.
	Holder string

	// Observer, if not nil, is told what happens: see [Event]. It is called by one goroutine at a time, in order, and
	// holds up nothing but itself: one that is too slow misses events. It must not call Close, which waits for it. Nil
	// means silence.
	Observer func(context.Context, Event)
}

// validate returns everything that is wrong with c, a sentence each; of a name the first mistake.
func (c Config) validate() error {
	var mistakes []error
	add := func(err error) {
		if err != nil {
			mistakes = append(mistakes, err)
		}
	}
	add(validatePart("the service key", c.ServiceKey))
	if c.ServiceKey != "" && len(mistakes) == 0 {
		add(validateLength("the key", encodePart(c.ServiceKey)))
	}
	add(validateHandler("the primary lock handler", c.Primary))
	if c.Primary == nil {
		add(errors.New("loki: the primary lock handler is missing: set one with SetPrimaryLockHandler or Config.Primary"))
	}
	add(validateHandler("the secondary lock handler", c.Secondary))
	if p := reflect.ValueOf(c.Primary); c.Primary != nil && p.Comparable() && c.Primary == c.Secondary {
		add(errors.New("loki: the primary and the secondary lock handler are the same one: with a single store leave the secondary out"))
	}
	if c.Mirror != MirrorAsync && c.Mirror != MirrorSync {
		add(fmt.Errorf("loki: %v is not a mirror mode: use MirrorAsync or MirrorSync", c.Mirror))
	}
	if c.Mirror == MirrorSync && c.Secondary == nil {
		add(errors.New("loki: MirrorSync needs a secondary lock handler: set one, or leave the mirror mode at its default"))
	}
	if c.PrimaryTimeout < 0 || c.SecondaryTimeout < 0 {
		add(fmt.Errorf("loki: handler timeouts of %v and %v: they cannot be negative, zero means the default", c.PrimaryTimeout, c.SecondaryTimeout))
	}
	if c.Holder != "" {
		add(validatePart("the holder", c.Holder))
		add(validateLength("the holder", c.Holder))
	}
	return errors.Join(mistakes...)
}

// validateHandler looks for a pointer that is nil inside a non-nil interface, which would only show as a nil
// dereference on the first call, and asks the handler itself. A nil interface is none of its business.
func validateHandler(what string, h LockHandler) error {
	if h == nil {
		return nil
	}
	switch v := reflect.ValueOf(h); v.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Chan, reflect.Func, reflect.Slice:
		if v.IsNil() {
			return fmt.Errorf("loki: %s is a nil %T: make it with its constructor", what, h)
		}
	}
	if v, ok := h.(Validator); ok {
		if err := v.Validate(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return fmt.Errorf("loki: %s (%T) is not usable: %w", what, h, err)
		}
	}
	return nil
}

// validatePart checks a service key, a resource, an occurrence or a holder as the user wrote it. Blanks at the ends and
// invisible characters are refused because two keys that differ in them look the same.
func validatePart(what, s string) error {
	switch {
	case s == "":
		return fmt.Errorf("loki: %s is empty", what)
	case !utf8.ValidString(s):
		return fmt.Errorf("loki: %s %s is not valid UTF-8", what, quoted(s))
	case strings.TrimFunc(s, unicode.IsSpace) != s:
		return fmt.Errorf("loki: %s %s begins or ends with a blank: remove it", what, quoted(s))
	}
	if i := strings.IndexFunc(s, invisible); i >= 0 {
		r, _ := utf8.DecodeRuneInString(s[i:])
		return fmt.Errorf("loki: %s %s contains the invisible character %U at byte %d: remove it", what, quoted(s), r, i)
	}
	return nil
}

// encodePart makes "service/resource@occurrence" unambiguous. Only the characters that could confuse it are touched, so
// that people recognise their keys in the store.
func encodePart(s string) string { return partEncoder.Replace(s) }

var partEncoder = strings.NewReplacer("%", "%25", "/", "%2F", "@", "%40")

func validateLength(what, s string) error {
	if n := len(utf16.Encode([]rune(s))); n > MaxKeyLength {
		return fmt.Errorf("loki: %s %s is too long: %d UTF-16 units, at most %d fit in every store", what, quoted(s), n, MaxKeyLength)
	}
	return nil
}

func validateExpiry(expiry time.Duration) error {
	switch {
	case expiry < MinExpiry:
		return fmt.Errorf("loki: an expiry of %v is too short: it must be at least %v", expiry, MinExpiry)
	case expiry > MaxExpiry:
		return fmt.Errorf("loki: an expiry of %v is too long: it must be at most %v", expiry, MaxExpiry)
	}
	return nil
}

// Builder puts a [Config] together. Its setters never fail; [Builder.Build] names every mistake. It is not for use by
// several goroutines at once.
type Builder struct{ config Config }

// NewBuilder returns an empty Builder.
func NewBuilder() *Builder { return &Builder{} }

// SetServiceKey sets [Config.ServiceKey], which is required.
func (b *Builder) SetServiceKey(key string) *Builder {
	b.config.ServiceKey = key
	return b
}

// SetPrimaryLockHandler sets [Config.Primary], which is required.
func (b *Builder) SetPrimaryLockHandler(h LockHandler) *Builder {
	b.config.Primary = h
	return b
}

// SetSecondaryLockHandler sets [Config.Secondary].
func (b *Builder) SetSecondaryLockHandler(h LockHandler) *Builder {
	b.config.Secondary = h
	return b
}

// SetMirror sets [Config.Mirror].
func (b *Builder) SetMirror(m MirrorMode) *Builder {
	b.config.Mirror = m
	return b
}

// SetPrimaryTimeout sets [Config.PrimaryTimeout].
func (b *Builder) SetPrimaryTimeout(timeout time.Duration) *Builder {
	b.config.PrimaryTimeout = timeout
	return b
}

// SetSecondaryTimeout sets [Config.SecondaryTimeout].
func (b *Builder) SetSecondaryTimeout(timeout time.Duration) *Builder {
	b.config.SecondaryTimeout = timeout
	return b
}

// SetHolder sets [Config.Holder].
func (b *Builder) SetHolder(name string) *Builder {
	b.config.Holder = name
	return b
}

// SetObserver sets [Config.Observer].
func (b *Builder) SetObserver(observe func(context.Context, Event)) *Builder {
	b.config.Observer = observe
	return b
}

// Build is [New] of what was set. The Builder may be changed and used again; what it built does not change with it.
func (b *Builder) Build() (*Locker, error) { return New(b.config) }
