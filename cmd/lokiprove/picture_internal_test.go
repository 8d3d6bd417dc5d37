package main

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/cmd/lokiprove/referee"
)

// A picture shows runs, overlaps and faults, and is well formed whatever a store says.
func TestPicture(t *testing.T) {
	ms := time.Millisecond
	var records []referee.Record
	add := func(worker int, at time.Duration, r referee.Record) {
		r.Worker, r.Life, r.Call, r.At = worker, 1, 1, at
		records = append(records, r)
	}
	records = append(records, referee.Record{What: referee.Began, Setting: &referee.Setting{Mode: referee.Async, Expiry: time.Second, Workers: 2, Seed: 7}})
	for worker := 1; worker <= 2; worker++ {
		begin := time.Duration(worker) * 200 * ms
		add(worker, begin-2*ms, referee.Record{What: referee.Asked})
		add(worker, begin-ms, referee.Record{What: referee.Confirmed, Store: referee.Primary, Sent: begin - ms, Expiry: time.Second})
		add(worker, begin, referee.Record{What: referee.Ran, Store: referee.Primary, Fence: int64(worker)})
		add(worker, begin+600*ms, referee.Record{What: referee.Ended})
		add(worker, begin+601*ms, referee.Record{What: referee.Returned, Result: referee.Lost, Reason: "conflict", OutcomeRan: true, Text: `held by <"&"> another`})
	}
	records = append(records,
		referee.Record{At: 100 * ms, What: referee.Fault, ID: 1, Kind: referee.Hole, Worker: 2, Store: referee.Secondary},
		referee.Record{At: 2 * time.Second, What: referee.Over, ID: 1},
		referee.Record{At: 30 * time.Second, What: referee.Healed},
	)
	exit, out, picture := judged(t, records...)
	require.Equal(t, exitBroken, exit, out)
	require.Contains(t, out, "BROKEN stuck")
	require.Contains(t, picture, "▼ stuck")
	require.Contains(t, picture, "400 ms")
	require.Contains(t, picture, "black hole, 0.100 s to 2.000 s, secondary")
	require.Contains(t, picture, "held by &lt;&#34;&amp;&#34;&gt; another")
	require.Contains(t, picture, "seed 7")

	for d := xml.NewDecoder(strings.NewReader(picture)); ; {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
	}
}
