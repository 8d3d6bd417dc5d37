package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/lokilock/loki/cmd/lokiprove/referee"
)

// serverLane is where faults of a server of the primary are drawn. The first one is at the top of the strip.
type serverLane struct {
	name   string
	height float64
}

// lanesOf is the servers and the ways that a strip shows.
func lanesOf(s referee.Setting) (servers []serverLane, links []string) {
	for i := range s.Quorum {
		servers = append(servers, serverLane{referee.Server(i + 1), voterHeight})
		links = append(links, referee.Server(i+1))
	}
	if s.Quorum == 0 {
		servers, links = []serverLane{{referee.Primary, serverHeight}}, []string{referee.Primary}
	}
	if s.Mode != referee.Alone {
		links = append(links, referee.Secondary)
	}
	return servers, links
}

// drawFaults draws each fault where it struck: a process, a way to a store, or a server.
func (s *strip) drawFaults(h *referee.History, bottom float64) {
	for _, f := range h.Faults {
		x, width, shown := s.span(f.From, f.To)
		if !shown {
			continue
		}
		l := looks[f.Kind]
		box := func(y, height, size float64) {
			s.rect(x, y, width, height, fmt.Sprintf(`fill="%s"`, l.fill), hint(f))
			s.label(x, y+height/2+size*0.36, width, size, l.ink, l.label)
		}
		switch {
		case referee.MeetsServer(f.Kind):
			at := max(slices.IndexFunc(s.servers, func(l serverLane) bool { return l.name == f.Store }), 0)
			height := s.servers[at].height
			box(s.top+float64(at)*height+1, height-3, min(height-4, 11))
			if h.Quorum == 0 {
				s.drawForgetting(f, bottom)
			}
		case f.Store != "":
			for i, y := range s.lanes {
				if f.Worker != 0 && f.Worker != i+1 {
					continue
				}
				box(y+runHeight+float64(slices.Index(s.links, f.Store))*linkHeight+1.5, linkHeight-2, 8)
			}
		case f.Worker != 0:
			y := s.lanes[f.Worker-1]
			s.rect(x, y, width, runHeight, fmt.Sprintf(`fill="%s"`, l.fill), hint(f))
			// At the right: at the left there may be the end of a run.
			if room := labelWidth(l.label, 10); room <= width {
				s.label(x+width-room, y+14, room, 10, l.ink, l.label)
			}
		}
	}
}

// drawForgetting draws a line through all lanes at the moment from which on the primary does not know what it knew.
func (s *strip) drawForgetting(f referee.Span, bottom float64) {
	at := f.From
	switch f.Kind {
	case referee.Restart:
	case referee.Promote:
		at = f.To
	default:
		return
	}
	if at >= s.from && at < s.to {
		s.line(s.x(at), s.top, s.x(at), bottom, `stroke="#8c2d19" stroke-width="1.3" stroke-dasharray="4 3"`)
	}
}

func hint(f referee.Span) string {
	text := fmt.Sprintf("%s, %.3f s to %.3f s", f.Kind, f.From.Seconds(), f.To.Seconds())
	if f.Store != "" { // whose, or the way to which
		text += ", " + f.Store
	}
	if f.Text != "" {
		text += ", " + f.Text
	}
	return text
}

// The bar of a run is inside the upper part of its lane.
const (
	barTop    = 4.0
	barHeight = runHeight - 2*barTop
)

func (s *strip) drawRuns(h *referee.History) {
	for _, r := range h.Runs {
		x, width, shown := s.span(r.Begin, r.End)
		if !shown {
			continue
		}
		y := s.lanes[r.Worker-1] + barTop
		fill := primaryFill
		if r.Store == referee.Secondary {
			fill = secondaryFill
		}
		s.rect(x, y, width, barHeight, fmt.Sprintf(`fill="%s" rx="2"`, fill), fmt.Sprintf("worker %d, call %d of life %d: %.3f s to %.3f s, %s, fence %d: %s",
			r.Worker, r.Number, r.Life, r.Begin.Seconds(), r.End.Seconds(), r.Store, r.Fence, r.Text))
		s.label(x, y+barHeight-3, width, 9, "#ffffff", told(r))
		if r.Result == referee.Lost && r.End >= s.from && r.End < s.to {
			s.text(s.x(r.End)+1, y+barHeight-1, `font-size="15" font-weight="bold" fill="#8a1c12"`, "×")
		}
	}
}

// drawOverlaps paints what two runs have in common, in both lanes and what is between them.
func (s *strip) drawOverlaps(v *referee.Verdict) {
	for _, o := range v.Overlaps {
		x, width, shown := s.span(o.From, o.To)
		if !shown {
			continue
		}
		a, b := s.lanes[o.A.Worker-1]+barTop, s.lanes[o.B.Worker-1]+barTop
		text := o.String()
		s.rect(x, min(a, b), width, max(a, b)+barHeight-min(a, b), fmt.Sprintf(`fill="%s" fill-opacity="0.14"`, overlapFill), text)
		for _, y := range []float64{a, b} {
			s.rect(x, y, width, barHeight, fmt.Sprintf(`fill="%s"`, overlapFill), text)
		}
		if o.From >= s.from {
			s.text(x+width/2, min(a, b)-1, fmt.Sprintf(`text-anchor="middle" font-size="10" font-weight="bold" fill="%s" stroke="#ffffff" stroke-width="2.5" paint-order="stroke"`, overlapFill),
				fmt.Sprintf("%d ms", o.Length().Round(time.Millisecond).Milliseconds()))
		}
	}
}
