package redisstore

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// DefaultPrefix begins every key, unless [Settings.Prefix] says otherwise.
const DefaultPrefix = "loki:"

const (
	fenceSuffix   = ":fence" // ends the name of the companion key
	channelSuffix = ":free"  // ends the name of the channel, which is no key
)

// naming turns a claim's key into the keys in Redis. No two claims share a key.
type naming struct {
	prefix  string
	lokiNet bool // see Settings.LokiNetKeys
}

var (
	// inTag keeps the braces of a name out of the hash tag's way: Redis Cluster takes what is between the first "{" and
	// the next "}" for the tag. A "%" is replaced only where it could be taken for one of these replacements, so that the
	// name can be told back and the Locker's own "%2F" still reads as it does in a log.
	inTag = strings.NewReplacer("%25", "%2525", "%7B", "%257B", "%7D", "%257D", "{", "%7B", "}", "%7D")

	// The Locker's encoding of a service key, and back.
	encodePart = strings.NewReplacer("%", "%25", "/", "%2F", "@", "%40")
	decodePart = strings.NewReplacer("%25", "%", "%2F", "/", "%40", "@")
)

// keys returns the lock's key and, unless LokiNet's keys are in use, its companion. Both have one hash tag, so that
// Redis Cluster keeps them in one slot.
func (n naming) keys(key string) []string {
	lock, companion := n.both(key)
	if companion == "" {
		return []string{lock}
	}
	return []string{lock, companion}
}

// both is keys, with an empty companion where there is none.
func (n naming) both(key string) (lock, companion string) {
	if n.lokiNet {
		return n.lokiNetKey(key), ""
	}
	companion = n.prefix + "{" + tag(key) + "}" + fenceSuffix
	return companion[:len(companion)-len(fenceSuffix)], companion
}

func (n naming) ownKey(key string) string { return n.prefix + "{" + tag(key) + "}" }

// tag is a key as it can be in a hash tag.
func tag(key string) string {
	if !strings.ContainsAny(key, "%{}") {
		return key
	}
	return inTag.Replace(key)
}

// channel is where the scripts publish that the lock may be free: the lock's key and a suffix, so that a message stays
// in its shard.
func (n naming) channel(key string) string {
	lock, _ := n.both(key)
	return lock + channelSuffix
}

// lokiNetKey is the service key as its owner wrote it, since that is what LokiNet locks. A lock that LokiNet cannot
// have, one with a resource, gets a key of our own. So does a service key that looks like one of those.
func (n naming) lokiNetKey(key string) string {
	serviceKey := decodePart.Replace(key)
	if encodePart.Replace(serviceKey) != key || strings.HasPrefix(serviceKey, n.prefix+"{") {
		return n.ownKey(key)
	}
	return serviceKey
}

// PrefixMistake returns what is wrong with a prefix, in words that follow it; empty if nothing is.
func PrefixMistake(prefix string) string {
	switch {
	case !utf8.ValidString(prefix):
		return "is not valid UTF-8"
	case strings.ContainsAny(prefix, "{}"):
		return "contains a brace, which would change the hash tag that keeps a lock's keys together"
	case strings.ContainsFunc(prefix, unicode.IsControl):
		return "contains a control character"
	}
	return ""
}
