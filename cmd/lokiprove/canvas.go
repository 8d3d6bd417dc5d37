package main

import (
	"fmt"
	"html"
	"strings"
	"time"
)

// canvas is an SVG while it is drawn. Lengths are pixels.
type canvas struct{ body strings.Builder }

// The styles are in the picture itself, so that it can be mailed.
const canvasHead = `<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" font-family="Helvetica, Arial, sans-serif" font-size="11">
<defs><pattern id="stopped" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" fill="#e3e3e3"/><rect width="2.5" height="6" fill="#b5b5b5"/></pattern></defs>
<rect width="%[1]d" height="%[2]d" fill="#ffffff"/>
`

func (c *canvas) write(format string, args ...any) { fmt.Fprintf(&c.body, format+"\n", args...) }

// rect draws a box; hint is what a browser shows when one points at it.
func (c *canvas) rect(x, y, width, height float64, attrs, hint string) {
	c.write(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" %s><title>%s</title></rect>`, x, y, width, height, attrs, html.EscapeString(hint))
}

func (c *canvas) line(x1, y1, x2, y2 float64, attrs string) {
	c.write(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" %s/>`, x1, y1, x2, y2, attrs)
}

func (c *canvas) text(x, y float64, attrs, text string) {
	c.write(`<text x="%.1f" y="%.1f" %s>%s</text>`, x, y, attrs, html.EscapeString(text))
}

// label writes into a box, if there is room.
func (c *canvas) label(x, y, width, size float64, fill, text string) {
	if labelWidth(text, size) <= width {
		c.text(x+width/2, y, fmt.Sprintf(`text-anchor="middle" font-size="%.0f" fill="%s"`, size, fill), text)
	}
}

// labelWidth is about how much room a label needs: nobody knows which font there will be.
func labelWidth(text string, size float64) float64 { return float64(len(text))*size*0.56 + 4 }

func (c *canvas) String(width, height float64) string {
	return fmt.Sprintf(canvasHead, int(width), int(height)) + c.body.String() + "</svg>\n"
}

// strip is one line of the picture: some seconds of the proof, with a lane for each worker.
type strip struct {
	*canvas
	from, to time.Duration
	top      float64
	servers  []serverLane
	links    []string  // the stores to which each worker has a way, from top to bottom
	lanes    []float64 // the top of each worker's lane
}

// x is where a moment is.
func (s *strip) x(at time.Duration) float64 {
	at = min(max(at, s.from), s.to)
	return plotLeft + plotWidth*float64(at-s.from)/float64(s.to-s.from)
}

// span is where a stretch of time begins and how wide it is, and whether the strip shows any of it.
func (s *strip) span(from, to time.Duration) (x, width float64, shown bool) {
	if to < s.from || from >= s.to {
		return 0, 0, false
	}
	x = s.x(from)
	return x, max(s.x(to)-x, 1.5), true
}
