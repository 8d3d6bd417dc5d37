package postgrestest

import (
	"os"
	"path/filepath"
)

// WriteFile writes a file that the server may read, and nobody else, and returns its path. A relative name is one in its
// data directory, such as "pg_hba.conf", which it reads when it is restarted.
func (s *Server) WriteFile(tb TB, name, content string) string {
	tb.Helper()
	path := filepath.Join(s.data(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		tb.Fatalf("postgrestest: %v", err)
	}
	if err := s.give(path); err != nil {
		tb.Fatalf("postgrestest: %v", err)
	}
	return path
}

// Standby has the server go on as a hot standby, as one does whose primary is away: it answers, and only reads.
func (s *Server) Standby(tb TB) {
	tb.Helper()
	s.Shutdown(tb)
	s.WriteFile(tb, "standby.signal", "")
	s.Restart(tb)
}

// give makes path the server's own.
func (s *Server) give(path string) error {
	if s.owner == nil {
		return nil
	}
	return os.Chown(path, int(s.owner.Uid), int(s.owner.Gid))
}
