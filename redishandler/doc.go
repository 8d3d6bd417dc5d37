// Package redishandler keeps loki's locks in Redis 6.2 or later, or in a server that speaks as it does.
//
//	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	locker, err := loki.NewBuilder().
//		SetServiceKey("invoice-batch").
//		SetPrimaryLockHandler(redishandler.New(rdb)).
//		Build()
//
// It does not wait for a lock, log, know of another handler, or change or close the client it was given.
//
// # Keys
//
// A lock is one key, written together with its expiry by one command, so that no key is ever without one:
//
//	loki:{invoice-batch}        "<token> <fence> <since, ms> <holder>"    while the claim holds
//	loki:{invoice-batch}:fence  "<last fence>[ <until, ms> <token>]"      [DefaultFenceTTL] longer
//
// In the name "{" and "}" become "%7B" and "%7D", and a "%" before "25", "7B" or "7D" becomes "%25": no two locks share
// a key, and what is between the braces,
// Redis Cluster's hash tag, is the same for both keys of a lock. [WithPrefix] replaces "loki:". [WithLokiNetKeys] names
// the lock as the library for .NET does, for a fleet that moves from one to the other.
//
// The companion is all that outlives a release. It makes fences grow from claim to claim, and tells the next holder
// which token was released last: only mirrored claims are remembered, for their expiry, and one that is remembered
// stays so when a claim that was not mirrored is released after it.
//
// # Operations
//
// Each operation is one script and one round trip (two if the server has lost its scripts). After a lost reply, or if a
// connection turns out to be broken, it is sent again, by go-redis or by the handler: a claim or a renewal then gets the same
// answer again, a release finds nothing (see [Handler.ReleaseHeld]). A fence is the largest of the last one
// plus one, [loki.Claim.Fence], and the server's clock in microseconds.
//
// An answer comes from a server that may write: a replica that reads an old lock says READONLY, not "busy" or "not
// held". [Handler.Inspect] alone is content with a replica. With a server that is out of memory, new claims fail and
// claims that hold are still renewed and released.
//
// Something else that is stored at a lock's key, of whatever type, is left untouched and is an error, since nobody
// would ever release it.
//
// # Waiting
//
// A release, and an expiry made shorter, is published on a channel named after the lock's key:
//
//	loki:{invoice-batch}:free
//
// All waiters of a Handler share one connection that listens ([Handler.Notify]), which is there only while somebody
// waits. In a cluster the message is a sharded one, if the cluster has these, and each lock that is waited for has a
// connection. A user who may not publish or subscribe locks all the same; waiters then poll.
//
// # Replicas
//
// A master answers before its replicas know of a lock, and a failover to one that missed it makes the lock free.
// [WithReplicaAck] waits for them. docs/redis.md in the repository says what each topology promises, and with which
// settings.
//
// # Permissions
//
// An ACL user needs the commands EVAL, EVALSHA, GET, GETEX, SET, DEL, PEXPIRE, PTTL and TIME, and the keys "loki:*"; for
// waiters that are woken, PUBLISH, SUBSCRIBE, UNSUBSCRIBE and PING, and the channels "loki:*"; for [WithReplicaAck], WAIT; in
// a cluster SPUBLISH, SSUBSCRIBE, ASKING, COMMAND and CLUSTER SLOTS besides; for a database other than 0, SELECT; for [Check],
// INFO:
//
//	ACL SETUSER locks on >secret ~loki:* resetchannels &loki:* +eval +evalsha +get +getex +set +del +pexpire +pttl +time
//	  +publish +subscribe +unsubscribe +ping +info
//
// # Errors
//
// A server that cannot be reached, or cannot answer now (LOADING, READONLY, CLUSTERDOWN, MISCONF, OOM, BUSY and their
// like, an exhausted pool), is [loki.Unavailable]. A refused password, a missing permission, a certificate that is not
// trusted, a server that runs no scripts, a key that holds something else and a client that its owner closed are permanent
// errors, and say what to do. [Check] finds most of them when an application starts. Each error begins with
// "redishandler: ", and names the server where the client is for one alone.
//
// A context's end is passed on to the client. go-redis heeds it in the middle of a command only if
// ContextTimeoutEnabled is set; the Locker bounds its calls either way. With it, a call costs less: see [Handler.Bounds].
package redishandler
