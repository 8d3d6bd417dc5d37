package redishandler_test

// This file is the suite that every handler has to pass. Those of Sentinel, Cluster and replicas are in their files.

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/lokitest"
	"github.com/lokilock/loki/redishandler"
)

func TestConformance(t *testing.T) {
	for name, test := range map[string]struct {
		protocol int // of RESP
		opts     []redishandler.Option
		bounded  bool
	}{
		"bounded":     {protocol: 3, bounded: true},
		"RESP3":       {protocol: 3},
		"RESP2":       {protocol: 2},
		"no prefix":   {protocol: 3, opts: []redishandler.Option{redishandler.WithPrefix("")}},
		"LokiNetKeys": {protocol: 2, opts: []redishandler.Option{redishandler.WithLokiNetKeys()}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := redistest.Start(t).Client(t, func(o *redis.Options) { o.Protocol, o.ContextTimeoutEnabled = test.protocol, test.bounded })
			lokitest.Run(t, func(*testing.T) loki.LockHandler {
				h := redishandler.New(client, test.opts...)
				if test.bounded {
					return bounded{h}
				}
				return h
			})
		})
	}
}
