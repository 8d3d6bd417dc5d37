package redistest

import (
	"context"
	"fmt"
	"os"
	"strings"
)

// LoseDisk takes the server's directory away and has a save fail, as a full disk would: a server that is configured to
// save refuses writes from then on.
func (s *Server) LoseDisk(tb TB) {
	tb.Helper()
	client := s.Client(tb)
	do(tb, client, "CONFIG", "SET", "save", "3600 1000000")
	if err := os.RemoveAll(s.dir); err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	_ = client.BgSave(context.Background()).Err() // some versions answer with the failure
	until(tb, "a failed save", func(ctx context.Context) bool {
		return strings.Contains(client.Info(ctx, "persistence").Val(), "rdb_last_bgsave_status:err")
	})
}

// RestartLoading fills the server, saves, and restarts it with a slow disk: it answers LOADING for some seconds. A server
// that loads answers between two chunks of 2 MB.
func (s *Server) RestartLoading(tb TB) {
	tb.Helper()
	const keys, size, delay = 3000, 10_000, "600" // the delay is a key's, in microseconds
	client := s.Client(tb)
	do(tb, client, "CONFIG", "SET", "rdbcompression", "no")
	pipeline := client.Pipeline()
	for i := range keys {
		pipeline.Set(context.Background(), fmt.Sprint("ballast ", i), strings.Repeat("x", size), 0)
	}
	if _, err := pipeline.Exec(context.Background()); err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	if err := client.Save(context.Background()).Err(); err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	s.Restart(tb, "--key-load-delay", delay)
}
