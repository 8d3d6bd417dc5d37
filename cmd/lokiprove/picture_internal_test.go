package main

import (
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"strconv"
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

	requireWellFormed(t, picture)
}

// Each server of a quorum has a lane, and each worker a way to it.
func TestPictureOfAQuorum(t *testing.T) {
	ms := time.Millisecond
	_, _, picture := judged(t,
		referee.Record{What: referee.Began, Setting: &referee.Setting{Mode: referee.Async, Expiry: time.Second, Workers: 2, Quorum: 3, Lossy: true}},
		referee.Record{At: 100 * ms, What: referee.Fault, ID: 1, Kind: referee.Crash, Store: referee.Server(3)},
		referee.Record{At: 200 * ms, What: referee.Fault, ID: 2, Kind: referee.Restart, Store: referee.Server(2)},
		referee.Record{At: 900 * ms, What: referee.Over, ID: 1},
		referee.Record{At: 900 * ms, What: referee.Fault, ID: 3, Kind: referee.Cut, Store: referee.Server(3), Worker: 2},
		referee.Record{At: 1400 * ms, What: referee.Over, ID: 2},
		referee.Record{At: 2000 * ms, What: referee.Over, ID: 3},
	)
	requireWellFormed(t, picture)
	require.NotContains(t, picture, "replica")
	require.NotContains(t, picture, "stroke-dasharray", "nothing is forgotten")
	require.Equal(t, 2, strings.Count(picture, ">to server 2</text>"))
	require.Equal(t, 2, strings.Count(picture, ">to secondary</text>"))

	// A box is as far from the lane it is in as another of its sort.
	server2, server3 := y(t, picture, "", ">server 2</title>"), y(t, picture, "", ">server 3</title>")
	require.Less(t, server2, server3)
	require.InDelta(t, server2+1, y(t, picture, looks[referee.Restart].fill, ">restart empty, 0.200 s to 1.400 s, server 2</title>"), 0.01)
	require.InDelta(t, server3+1, y(t, picture, looks[referee.Crash].fill, ">crash, 0.100 s to 0.900 s, server 3</title>"), 0.01)
	ways := regexp.MustCompile(`<rect x="[\d.]+" y="([\d.]+)"[^>]*><title>to server 3</title>`).FindAllStringSubmatch(picture, -1)
	require.Len(t, ways, 2)
	way, err := strconv.ParseFloat(ways[1][1], 64)
	require.NoError(t, err)
	require.InDelta(t, way+0.5, y(t, picture, looks[referee.Cut].fill, ">cut, 0.900 s to 2.000 s, server 3</title>"), 0.01)
}

// y is where the only box with this fill and title is.
func y(t *testing.T, picture, fill, title string) float64 {
	t.Helper()
	found := regexp.MustCompile(`<rect x="[\d.]+" y="([\d.]+)"[^>]*`+fill+`[^>]*><title`+regexp.QuoteMeta(title)).FindAllStringSubmatch(picture, -1)
	require.Len(t, found, 1, title)
	at, err := strconv.ParseFloat(found[0][1], 64)
	require.NoError(t, err)
	return at
}

func requireWellFormed(t *testing.T, picture string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(picture)); ; {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
	}
}
