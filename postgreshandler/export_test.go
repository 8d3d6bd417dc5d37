package postgreshandler

import "time"

// WithPatience says how long a connection that listens is waited for: silent, for a sign of life, to be restored.
func WithPatience(silence, sign, restore time.Duration) Option {
	return func(s *settings) { s.patience = patience{silence, sign, restore} }
}
