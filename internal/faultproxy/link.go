package faultproxy

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// chunkSize is larger than any command a test sends, so that a command is one chunk.
const chunkSize = 64 << 10

// link is one connection through the proxy: two pumps, requests one way and replies the other.
type link struct {
	proxy  *Proxy
	client net.Conn

	losing    atomic.Pointer[fault] // set: the next reply is lost, and the link with it
	forgotten atomic.Bool           // nothing passes any more, for good
	resetting atomic.Bool           // the next request cuts the link

	once sync.Once
	done chan struct{} // closed when the link has been cut
}

// cut ends the link at once: the client sees a reset, and both pumps end.
func (l *link) cut() {
	l.once.Do(func() {
		close(l.done)
		if tcp, ok := l.client.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = l.client.Close()
	})
}

// serve runs both pumps and returns when both have ended.
func (l *link) serve(server net.Conn) {
	var replies sync.WaitGroup
	replies.Go(func() {
		l.pumpReplies(server)
		l.cut()
	})
	stop := make(chan struct{})
	replies.Go(func() { // a cut link closes the server's side too, also under a blocked pump
		select {
		case <-l.done:
		case <-stop:
		}
		_ = server.Close()
	})
	l.pumpRequests(server)
	if l.forgotten.Load() { // the server never learns that the client has closed it
		<-l.done
	}
	close(stop)
	replies.Wait()
}

func (l *link) pumpRequests(server net.Conn) {
	chunk := make([]byte, chunkSize)
	for {
		n, err := l.client.Read(chunk)
		if err != nil || !l.pass(0) {
			return
		}
		if l.forgotten.Load() {
			continue
		}
		if l.resetting.Load() {
			l.cut()
			return
		}
		f := l.proxy.take(chunk[:n])
		if f != nil && f.reply != nil {
			if _, err = l.client.Write(f.reply); err != nil {
				return
			}
			close(f.fired)
			continue
		}
		if f != nil {
			l.losing.Store(f) // before the request is sent, so that its reply cannot come first
		}
		if _, err = server.Write(chunk[:n]); err != nil {
			return
		}
	}
}

func (l *link) pumpReplies(server net.Conn) {
	chunk := make([]byte, chunkSize)
	for {
		n, err := server.Read(chunk)
		if err != nil {
			return
		}
		if f := l.losing.Load(); f != nil {
			l.cut()
			close(f.fired)
			return
		}
		_, delay := l.proxy.gate()
		if !l.pass(delay) {
			return
		}
		if l.forgotten.Load() {
			continue
		}
		if _, err = l.client.Write(chunk[:n]); err != nil {
			return
		}
	}
}

// pass waits for d, and for as long as there is a black hole. False means that the link was cut meanwhile.
func (l *link) pass(d time.Duration) bool {
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.done:
			return false
		}
	}
	for {
		open, _ := l.proxy.gate()
		select {
		case <-l.done:
			return false
		case <-open:
			if current, _ := l.proxy.gate(); current == open { // no new black hole began meanwhile
				return true
			}
		}
	}
}
