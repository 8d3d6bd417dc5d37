// Package faultproxy is a TCP proxy that fails as a network does, on the word of a test.
//
// It looks at bytes as they arrive, a chunk at a time, and knows no protocol: a client that writes each command at once
// gives it a command a chunk. Mind that a handshake (HELLO, CLIENT SETINFO) goes before a connection's first command.
//
// It does not know what protocol it carries, or change a byte that it was not told to.
package faultproxy

import (
	"bytes"
	"net"
	"sync"
	"time"
)

// TB is the part of [testing.TB] that is needed.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// Match picks a request by the bytes of one chunk.
type Match func(request []byte) bool

// Containing matches a chunk that has s in it, in any case.
func Containing(s string) Match {
	lower := bytes.ToLower([]byte(s))
	return func(request []byte) bool { return bytes.Contains(bytes.ToLower(request), lower) }
}

// Proxy forwards connections to one target. It begins without a fault. Its methods may be called at any time, by many
// goroutines; what they set holds for the connections there are and for those to come.
type Proxy struct {
	target   string
	listener net.Listener
	pumps    sync.WaitGroup

	mu     sync.Mutex // guards what follows; nothing that can block is done with it held
	closed bool
	links  map[*link]struct{}
	refuse bool
	delay  time.Duration
	open   chan struct{} // closed while bytes may pass, open in a black hole
	armed  []*fault      // for the next request that matches, each once
}

// fault is what happens to one request.
type fault struct {
	match Match
	reply []byte // instead of the target's; nil: the target's reply is lost, and the connection with it
	fired chan struct{}
}

// Start starts a proxy to target. It ends, with all its connections and goroutines, with the test.
func Start(tb TB, target string) *Proxy {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("faultproxy: %v", err)
	}
	p := &Proxy{target: target, listener: listener, links: map[*link]struct{}{}, open: make(chan struct{})}
	close(p.open)
	p.pumps.Go(p.accept)
	tb.Cleanup(p.close)
	return p
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// PassThrough ends every fault, also those that wait for a request. What became of a connection stays.
func (p *Proxy) PassThrough() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse, p.delay, p.armed = false, 0, nil
	p.unblock()
}

// Refuse closes every connection, and new ones as soon as they are made.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	p.refuse = true
	p.mu.Unlock()
	p.Disconnect()
}

// Disconnect closes every connection once. New ones are served.
func (p *Proxy) Disconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// BlackHole accepts connections and answers nothing. What was sent meanwhile arrives after PassThrough, even if the
// client has gone, as it does when a network comes back.
func (p *Proxy) BlackHole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
		p.open = make(chan struct{})
	default:
	}
}

// Forget drops, in silence and for good, whatever is sent from now on through the connections there are, in both
// directions, as a NAT does that has forgotten them: neither side learns of it, and of the other's closing neither. New
// connections are served. PassThrough does not bring the old ones back.
func (p *Proxy) Forget() { p.mark(func(l *link) { l.forgotten.Store(true) }) }

// Reset answers the next request on each connection there is with a reset, as a NAT does that has forgotten them and says
// so. Until then a connection looks sound. New ones are served.
func (p *Proxy) Reset() { p.mark(func(l *link) { l.resetting.Store(true) }) }

func (p *Proxy) mark(change func(*link)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		change(l)
	}
}

// Connections is how many there are, those that Forget has dropped among them.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Delay holds every chunk of a reply back for d.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// LoseReply lets the next matching request reach the target, waits for the reply, and closes the connection instead of
// forwarding it: the request is applied and the client does not learn of it. The channel is closed when that has
// happened.
func (p *Proxy) LoseReply(match Match) <-chan struct{} { return p.arm(match, nil) }

// Answer keeps the next matching request from the target and answers with reply. The channel is closed when that has
// happened.
func (p *Proxy) Answer(match Match, reply string) <-chan struct{} { return p.arm(match, []byte(reply)) }

func (p *Proxy) arm(match Match, reply []byte) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := &fault{match: match, reply: reply, fired: make(chan struct{})}
	p.armed = append(p.armed, f)
	return f.fired
}

// take returns the first armed fault for the request and disarms it.
func (p *Proxy) take(request []byte) *fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, f := range p.armed {
		if f.match(request) {
			p.armed = append(p.armed[:i:i], p.armed[i+1:]...)
			return f
		}
	}
	return nil
}

// gate is the channel that is closed while bytes may pass, and how long a reply is held back.
func (p *Proxy) gate() (open <-chan struct{}, delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open, p.delay
}

// unblock ends a black hole; mu is held.
func (p *Proxy) unblock() {
	select {
	case <-p.open:
	default:
		close(p.open)
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.pumps.Go(func() { p.serve(client) })
	}
}

// serve forwards one connection until it ends.
func (p *Proxy) serve(client net.Conn) {
	l := &link{proxy: p, client: client, done: make(chan struct{})}
	if !p.add(l) {
		l.cut()
		return
	}
	defer p.remove(l)
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		l.cut()
		return
	}
	l.serve(server)
}

func (p *Proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse || p.closed {
		return false
	}
	p.links[l] = struct{}{}
	return true
}

func (p *Proxy) remove(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close()
	p.Disconnect()
	p.pumps.Wait()
}
