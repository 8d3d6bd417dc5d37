package main

import (
	"errors"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// writePictures draws the curves.
func writePictures(dir string, r record, leaseCounts []int) error {
	waits, err := drawWaits(r)
	if err != nil {
		return err
	}
	if err := save(filepath.Join(dir, "handover.svg"), [][]*plot.Plot{{waits}}, 18*vg.Centimeter, 10*vg.Centimeter); err != nil {
		return err
	}
	panels, err := drawLeases(r, leaseCounts)
	if err != nil {
		return err
	}
	return save(filepath.Join(dir, "leases.svg"), panels, 22*vg.Centimeter, 16*vg.Centimeter)
}

// drawWaits shows how many of the waiters have the lock how long after it was released.
func drawWaits(r record) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = "A waiter in another process gets the lock"
	p.X.Label.Text = "ms after it was released"
	p.Y.Label.Text = "% of the waiters"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.X.Min, p.X.Max = 0.1, 1000
	p.Y.Min, p.Y.Max = 0, 100
	p.Legend.Left, p.Legend.Top = true, true
	p.Add(plotter.NewGrid())
	for i, name := range waiting {
		var each []time.Duration
		for _, s := range r[handOver.name][name] {
			each = append(each, s.latencies...)
		}
		if len(each) == 0 {
			continue
		}
		slices.Sort(each)
		points := make(plotter.XYs, len(each))
		for j, d := range each {
			points[j] = plotter.XY{X: max(float64(d)/1e6, p.X.Min), Y: 100 * float64(j+1) / float64(len(each))}
		}
		l, err := plotter.NewLine(points)
		if err != nil {
			return nil, err
		}
		l.Color, l.Dashes, l.Width = plotutil.Color(i), plotutil.Dashes(i), vg.Points(1.5)
		if name == lokiName {
			l.Dashes, l.Width = nil, vg.Points(2.5)
		}
		p.Add(l)
		p.Legend.Add(name, l)
	}
	return p, nil
}

// drawLeases shows what growing numbers of leases take.
func drawLeases(r record, counts []int) ([][]*plot.Plot, error) {
	panel := func(title, unit string) (*plot.Plot, error) {
		p := plot.New()
		p.Title.Text = title
		p.X.Label.Text = "leases"
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		p.Y.Min, p.Y.Max = 0, 1
		p.Add(plotter.NewGrid())
		var points plotter.XYs
		for _, n := range counts {
			if v, ok := r.figure(leases(n).name, lokiName, unit); ok && !math.IsNaN(v) {
				points = append(points, plotter.XY{X: float64(n), Y: v})
			}
		}
		l, s, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		l.Color, s.Color, s.Shape = plotutil.Color(0), plotutil.Color(0), draw.CircleGlyph{}
		p.Add(l, s)
		return p, nil
	}
	var panels [][]*plot.Plot
	for _, row := range [][][2]string{
		{{"heap of each, bytes", heapEach}, {"goroutines of all", goroutines}},
		{{"CPU, % of one core", cpu}, {"oldest record, % of its expiry", oldest}},
	} {
		var plots []*plot.Plot
		for _, p := range row {
			drawn, err := panel(p[0], p[1])
			if err != nil {
				return nil, err
			}
			plots = append(plots, drawn)
		}
		panels = append(panels, plots)
	}
	return panels, nil
}

// save writes plots, in rows, as one SVG.
func save(path string, plots [][]*plot.Plot, width, height vg.Length) (err error) {
	canvas := vgsvg.New(width, height)
	canvas.SetColor(color.White) // a picture without a background cannot be read on a dark page
	canvas.Fill(vg.Rectangle{Max: vg.Point{X: width, Y: height}}.Path())
	const margin = 4 * vg.Millimeter
	tiles := draw.Tiles{
		Rows: len(plots), Cols: len(plots[0]), PadX: 2 * margin, PadY: 2 * margin,
		PadTop: margin, PadBottom: margin, PadLeft: margin, PadRight: 2 * margin,
	}
	for i, row := range plot.Align(plots, tiles, draw.New(canvas)) {
		for j, c := range row {
			plots[i][j].Draw(c)
		}
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = canvas.WriteTo(f)
	return err
}
