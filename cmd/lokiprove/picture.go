package main

import (
	"fmt"
	"os"
	"time"

	"github.com/lokilock/loki/cmd/lokiprove/referee"
)

// The measures of the picture.
const (
	pictureWidth = 1440.0
	plotLeft     = 84.0
	plotWidth    = pictureWidth - plotLeft - 24

	headHeight   = 112.0
	serverHeight = 24.0 // of the primary's lane
	voterHeight  = 15.0 // of the lane of one server of a quorum
	runHeight    = 20.0 // of the part of a lane in which runs are
	linkHeight   = 11.0 // of a part that shows the way to a store
	laneGap      = 7.0
	axisHeight   = 30.0
	stripGap     = 20.0

	stripLength = 12 * time.Second // or thereabouts
	maxStrips   = 24               // after which strips get longer
)

// look is how a kind of fault is shown.
type look struct{ fill, ink, label string }

var looks = map[string]look{
	referee.Kill:       {"#3d3d3d", "#ffffff", "killed"},
	referee.Stop:       {"url(#stopped)", "#333333", "stopped"},
	referee.Cut:        {"#e8872b", "#000000", "cut"},
	referee.Hole:       {"#7a4fb0", "#ffffff", "black hole"},
	referee.Slow:       {"#ecd25c", "#000000", "slow"},
	referee.LostReply:  {"#e58ab4", "#000000", "reply lost"},
	referee.Disconnect: {"#e8872b", "#000000", ""},
	referee.Forget:     {"#1f6f6a", "#ffffff", ""},
	referee.Full:       {"#c3cf8f", "#000000", "pool full"},
	referee.Freeze:     {"#9fd3e6", "#000000", "frozen"},
	referee.Crash:      {"#a4532a", "#ffffff", "crashed"},
	referee.Restart:    {"#5c2e12", "#ffffff", "restarts empty"},
	referee.Promote:    {"#b8866b", "#000000", "replica lags"},
}

// The colours of runs: by the store that granted them.
const (
	primaryFill   = "#2f6fc4"
	secondaryFill = "#23906f"
	overlapFill   = "#e0182d"
)

// drawTo draws a history as an SVG.
func drawTo(name string, h *referee.History, v *referee.Verdict) error {
	return os.WriteFile(name, []byte(draw(h, v)), 0o644)
}

func draw(h *referee.History, v *referee.Verdict) string {
	c := &canvas{}
	drawHead(c, h, v)
	strips := min(max((h.End+stripLength/2)/stripLength, 1), maxStrips)
	length := h.End/strips + time.Millisecond // so that the last one is full too
	y := headHeight
	for from := time.Duration(0); from < h.End; from += length {
		s := &strip{canvas: c, from: from, to: from + length, top: y}
		y = s.draw(h, v) + stripGap
	}
	return c.String(pictureWidth, y)
}

// drawHead writes what was proved, and the legend.
func drawHead(c *canvas, h *referee.History, v *referee.Verdict) {
	c.text(16, 26, `font-size="17" font-weight="bold"`, fmt.Sprintf("loki, mode %s: %d workers contend for one lock, expiry %v", h.Mode, h.Workers, h.Expiry))
	fill := "#1d7a3c"
	if !v.Kept() {
		fill = overlapFill
	}
	c.text(16, 45, fmt.Sprintf(`font-size="13" fill="%s"`, fill), verdictLine(v))
	c.text(16, 62, `font-size="12" fill="#444444"`, "overlaps: "+overlapLine(v)+"; stores: "+h.Stores)

	x, y := 16.0, 74.0
	fit := func(text string) (width float64) {
		width = float64(len(text))*5.9 + 34
		if x+width > pictureWidth-16 {
			x, y = 16, y+17
		}
		return width
	}
	item := func(l look, text string) {
		width := fit(text)
		c.rect(x, y, 18, 11, fmt.Sprintf(`fill="%s"`, l.fill), text)
		c.text(x+23, y+9.5, "", text)
		x += width
	}
	item(look{fill: primaryFill}, "runs, granted by the primary")
	if h.Mode != referee.Alone {
		item(look{fill: secondaryFill}, "by the secondary")
	}
	item(look{fill: overlapFill}, "two at once")
	item(looks[referee.Kill], "killed")
	item(looks[referee.Stop], "stopped (SIGSTOP)")
	item(looks[referee.Cut], "link cut")
	item(looks[referee.Hole], "black hole")
	item(looks[referee.Slow], "slow")
	item(looks[referee.LostReply], "next reply lost")
	item(looks[referee.Forget], "connections forgotten")
	item(looks[referee.Full], "the client's pool is full")
	item(looks[referee.Freeze], "server frozen")
	if h.Quorum > 0 {
		item(looks[referee.Crash], "crashed, data kept")
	}
	if h.Lossy {
		item(looks[referee.Restart], "down, then empty")
	}
	if h.Lossy && h.Quorum == 0 {
		item(looks[referee.Promote], "replica falls behind, then leads")
	}
	const lost = "× lock lost"
	fit(lost)
	c.text(x+6, y+9.5, `fill="#8a1c12"`, lost)
}

// draw draws the strip and returns where it ends.
func (s *strip) draw(h *referee.History, v *referee.Verdict) float64 {
	y := s.top
	s.servers, s.links = lanesOf(h.Setting)
	for _, l := range s.servers {
		y += l.height
	}
	y += laneGap
	laneHeight := runHeight + float64(len(s.links))*linkHeight
	for range h.Workers {
		s.lanes = append(s.lanes, y)
		y += laneHeight + laneGap
	}
	bottom := y - laneGap + 3
	s.drawGround(h, bottom)
	s.drawFaults(h, bottom)
	s.drawRuns(h)
	s.drawOverlaps(v)
	for _, b := range v.Breaches {
		if b.At >= s.from && b.At < s.to {
			s.text(s.x(b.At), s.top-2, fmt.Sprintf(`text-anchor="middle" font-weight="bold" fill="%s"`, overlapFill), "▼ "+b.Rule)
		}
	}
	return bottom + axisHeight
}

// drawGround draws lanes, their names and the axis.
func (s *strip) drawGround(h *referee.History, bottom float64) {
	name := `text-anchor="end" font-size="12"`
	small := `text-anchor="end" font-size="8" fill="#777777"`
	top := s.top
	for _, l := range s.servers {
		s.rect(plotLeft, top, plotWidth, l.height-1, `fill="#f3efe9"`, l.name)
		s.text(plotLeft-8, top+l.height/2+4, name, l.name)
		top += l.height
	}
	for i, y := range s.lanes {
		s.rect(plotLeft, y, plotWidth, runHeight, `fill="#f2f4f7"`, "")
		s.text(plotLeft-8, y+14, name, fmt.Sprintf("worker %d", i+1))
		for link, to := range s.links {
			top := y + runHeight + float64(link)*linkHeight
			s.rect(plotLeft, top+1, plotWidth, linkHeight-1, `fill="#fafbfc"`, "to "+to)
			s.text(plotLeft-8, top+9, small, "to "+to)
		}
	}
	tick := s.tick()
	for at := (s.from + tick - 1).Truncate(tick); at <= s.to; at += tick {
		x := s.x(at)
		s.line(x, s.top, x, bottom+4, `stroke="#d5d9df" stroke-width="1"`)
		s.text(x, bottom+16, `text-anchor="middle" fill="#555555"`, fmt.Sprintf("%d s", int(at.Seconds())))
	}
	if x, width, shown := s.span(h.Healed, h.End); shown && h.Healed > 0 {
		s.rect(x, bottom, width, 4, `fill="#7cc38e"`, "no faults from here on")
		s.label(x, bottom+27, width, 11, "#1d7a3c", "no faults from here on")
	}
}

// tick is a second, or more where a strip is long.
func (s *strip) tick() time.Duration {
	return max(time.Second, ((s.to - s.from) / 24).Truncate(time.Second))
}
