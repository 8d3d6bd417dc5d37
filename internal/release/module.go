package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// unreleased are the modules that are run in a clone only. They keep the replace directives that lead to their neighbours.
var unreleased = []string{"benchmarks", "cmd/lokiprove", "examples", "internal/release"}

// mod is a module of the repository.
type mod struct {
	dir  string // from the root, with slashes; empty for the root
	path string
}

// tag returns the name that the go command looks for: that of a nested module begins with its folder.
func (m mod) tag(version string) string { return path.Join(m.dir, version) }

func (m mod) isReleased() bool { return !slices.Contains(unreleased, m.dir) }

func (m mod) file(root, name string) string {
	return filepath.Join(root, filepath.FromSlash(m.dir), name)
}

// findModules returns every module in the tree, the ones that others require before those others.
func findModules(root string) ([]mod, error) {
	var all []mod
	requires := map[string][]string{}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if base := entry.Name(); entry.IsDir() && name != root && (base == "testdata" || strings.HasPrefix(base, ".")) {
			return filepath.SkipDir
		}
		if entry.Name() != "go.mod" {
			return nil
		}
		f, err := readGoMod(name)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(name))
		if err != nil {
			return err
		}
		m := mod{dir: strings.TrimPrefix(filepath.ToSlash(dir), "."), path: f.Module.Mod.Path}
		all = append(all, m)
		for _, r := range f.Require {
			requires[m.path] = append(requires[m.path], r.Mod.Path)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var sorted []mod
	for len(all) > 0 {
		ready := slices.IndexFunc(all, func(m mod) bool {
			return !slices.ContainsFunc(all, func(other mod) bool { return slices.Contains(requires[m.path], other.path) })
		})
		if ready < 0 {
			return nil, fmt.Errorf("the modules %v require each other in a circle", all)
		}
		sorted = append(sorted, all[ready])
		all = slices.Delete(all, ready, ready+1)
	}
	return sorted, nil
}

func readGoMod(name string) (*modfile.File, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return modfile.Parse(name, text, nil)
}

// pin makes the module in root require its neighbours at version and, in a module that is released, takes the replace
// directives away that lead to them.
func (m mod) pin(root, version string, neighbours []mod, dropReplace bool) error {
	name := m.file(root, "go.mod")
	f, err := readGoMod(name)
	if err != nil {
		return err
	}
	for _, n := range neighbours {
		required := slices.ContainsFunc(f.Require, func(r *modfile.Require) bool { return r.Mod.Path == n.path })
		if required {
			err = errors.Join(err, f.AddRequire(n.path, version))
		}
		if required && dropReplace && !n.isReleased() {
			err = errors.Join(err, fmt.Errorf("%s requires %s, which is not released", m.path, n.path))
		}
		if dropReplace {
			err = errors.Join(err, f.DropReplace(n.path, ""))
		}
	}
	if dropReplace && err == nil {
		f.Cleanup()
		for _, r := range f.Replace {
			err = errors.Join(err, fmt.Errorf("%s replaces %s: go install refuses a module that replaces anything", m.path, r.Old.Path))
		}
	}
	if err != nil {
		return err
	}
	f.Cleanup()
	text, err := f.Format()
	if err != nil {
		return err
	}
	return os.WriteFile(name, text, 0o644)
}
