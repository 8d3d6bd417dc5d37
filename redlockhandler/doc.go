// Package redlockhandler keeps each of loki's locks on several independent Redis servers, 6.2 or later, and has it hold where
// a majority of them says so: the algorithm that the Redis documentation calls Redlock.
//
//	locker, err := loki.NewBuilder().
//		SetServiceKey("invoice-batch").
//		SetPrimaryLockHandler(redlockhandler.New([]*redis.Client{a, b, c})).
//		Build()
//
// A lock survives the loss of any minority of the servers, one of three, two of five, three of seven, without any
// replication between them. Keys, values, permissions and the treatment of errors are those of package redishandler, on every
// server, so that a person reads one format.
//
// All servers are asked at once, each for at most [DefaultServerTimeout], and the answer is there
// when a majority has decided, whatever the others do. What they could not decide is an [*Error], which has what each server
// said, and which begins with "redlockhandler: ", as every error of this package does.
//
// When several instances vote at the same moment, each may get some of the servers, and none a majority. Then all of them give
// way: each rolls back its votes and votes again after a random pause that grows. That goes on within the call, and with
// [loki.WithWait] until one of them has won. A caller that does not wait, and whose votes stay split to the end of its call, gets
// an error that matches [loki.ErrBusy] and says that several instances contend. It is no outage, and no Locker falls back to its
// secondary because of it. It is possible, and rare, that all of those callers are busy and none of them runs.
//
// A server that does not answer gets one vote and one release at a time from each Handler. What an outage has left behind is
// released when the servers are back, one claim after the other, so that votes are answered meanwhile.
//
// It does not wait for a lock, log, know of another handler, or change or close the clients it was given.
//
// # What it promises
//
// At most one holder at a time, as long as these hold:
//
// Clocks run at nearly the same rate. Each server counts the expiry by its own clock, and is asked for a hundredth and 2 ms
// more, for those that run fast. Redis counts by the clock of the machine, so one that is set forward by more than that
// forgets too early; clocks are to be slewed and not stepped.
//
// A server does not forget what it has promised. One that crashes and comes back empty, or without its last second of
// writes, votes a second time: the holder has servers 1 and 2 of three, 2 restarts, and a rival gets 2 and 3. Either each
// server writes what it promises before it answers (appendonly yes and appendfsync always), or one that has crashed is
// kept down for longer than the longest expiry in use, by when all that it promised is over. Nothing here can see to that.
// A server that is back is given the claims of those who still hold a majority, with the next renewal.
//
// The holder heeds the end of its lease. No lock service can stop a holder that was paused, or whose write was long on
// its way, from writing after its lock has gone to another. Martin Kleppmann's critique of Redlock is that only a fence
// that the guarded store compares stops it, and that this algorithm has none to give, besides leaning on clocks as above.
// Both is so. If work that overlaps costs more than work done twice, guard it where it takes effect, or use a store that
// issues fences.
//
// It offers no fences because it could not keep their order. Each server numbers its own claims; the largest number of one
// majority can be lower than that of the majority before, since the two may have only one server in common, and it may
// not be the one that had counted further. To agree on a number takes a consensus between the servers, which they do not
// have.
//
// # Settings
//
// Servers are to be as independent of each other as can be had: machines, power, networks. Replicas of a server are no
// servers of a quorum, and a quorum of masters with a failover of their own is as weak as that. Give each client its own
// server, and ContextTimeoutEnabled, so that calls which a server does not answer are not left behind until the client's
// own timeouts end them; those are bounded in number either way.
//
// See https://redis.io/docs/latest/develop/use/patterns/distributed-locks/ for the algorithm, and
// https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html for the critique.
package redlockhandler
