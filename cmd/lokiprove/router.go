package main

import (
	"context"
	"io"
	"net"
	"sync"

	"github.com/lokilock/loki/internal/redistest"
)

// router is one address for whichever server is the primary now, as a fleet has it from its sentinels or its DNS.
type router struct {
	listener net.Listener
	pumps    sync.WaitGroup

	mu     sync.Mutex // guards what follows
	target string
	conns  map[net.Conn]struct{}
	closed bool
}

// startRouter starts one that ends with tb, whatever becomes of ctx.
func startRouter(ctx context.Context, tb redistest.TB, target string) *router {
	tb.Helper()
	ctx = context.WithoutCancel(ctx)
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("router: %v", err)
	}
	r := &router{listener: listener, target: target, conns: map[net.Conn]struct{}{}}
	r.pumps.Go(func() { r.accept(ctx) })
	tb.Cleanup(r.close)
	return r
}

func (r *router) addr() string { return r.listener.Addr().String() }

// lead sends who connects from now on to target, and closes the connections there are.
func (r *router) lead(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = target
	for c := range r.conns {
		_ = c.Close()
	}
}

func (r *router) accept(ctx context.Context) {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.pumps.Go(func() { r.serve(ctx, client) })
	}
}

func (r *router) serve(ctx context.Context, client net.Conn) {
	defer func() { _ = client.Close() }()
	r.mu.Lock()
	target := r.target
	r.mu.Unlock()
	var dialer net.Dialer
	server, err := dialer.DialContext(ctx, "tcp", target)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	if !r.keep(target, client, server) {
		return
	}
	defer r.drop(client, server)
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(client, server)
		_ = client.Close()
	})
	_, _ = io.Copy(server, client)
	_ = server.Close()
	back.Wait()
}

// keep refuses a connection that was made to a target which is none any more.
func (r *router) keep(target string, conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.target != target {
		return false
	}
	for _, c := range conns {
		r.conns[c] = struct{}{}
	}
	return true
}

func (r *router) drop(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		delete(r.conns, c)
	}
}

func (r *router) close() {
	_ = r.listener.Close()
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.lead("")
	r.pumps.Wait()
}
