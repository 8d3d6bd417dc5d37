package main

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/perf/benchfmt"
)

// writeBenchmarks writes a file for each contender in the Go benchmark format, a line for each round, for benchstat.
func writeBenchmarks(dir string, r record, p place, order []work) error {
	config := []benchfmt.Config{
		{Key: "goos", Value: []byte(runtime.GOOS), File: true},
		{Key: "goarch", Value: []byte(runtime.GOARCH), File: true},
		{Key: "cpu", Value: []byte(p.cpu), File: true},
	}
	contenders := make(map[string]bool)
	for _, s := range r {
		for name := range s {
			contenders[name] = true
		}
	}
	for name := range contenders {
		if err := writeBenchmark(filepath.Join(dir, name+".txt"), name, r, config, order); err != nil {
			return err
		}
	}
	return nil
}

// units returns the units of a sample, the time of an operation first, as go test has them.
func units(s sample) []string {
	all := slices.Sorted(maps.Keys(s.values))
	if i := slices.Index(all, nsPerOp); i > 0 {
		all = slices.Insert(slices.Delete(all, i, i+1), 0, nsPerOp)
	}
	return all
}

func writeBenchmark(path, who string, r record, config []benchfmt.Config, order []work) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	out := benchfmt.NewWriter(f)
	for _, w := range order {
		for _, s := range r[w.name][who] {
			result := &benchfmt.Result{Config: config, Name: benchfmt.Name(w.name), Iters: s.n}
			for _, unit := range units(s) {
				result.Values = append(result.Values, benchfmt.Value{Value: s.values[unit], Unit: unit})
			}
			if err := out.Write(result); err != nil {
				return err
			}
		}
	}
	return nil
}
