package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// proxy is a folder that the go command reads as a module proxy, and a module cache beside it: a dry run must leave
// nothing in the developer's own cache, which would be taken for the release later.
type proxy struct {
	dir, cache string
	goproxy    string // other sources: what the developer's cache has downloaded, and the developer's own proxy
}

func newProxy(ctx context.Context, dir string) (*proxy, error) {
	p := &proxy{dir: filepath.Join(dir, "proxy"), cache: filepath.Join(dir, "modcache")}
	out, err := exec.CommandContext(ctx, "go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	env := strings.Split(string(out), "\n")
	p.goproxy = fileURL(filepath.Join(env[0], "cache", "download")) + "," + env[1]
	return p, os.MkdirAll(p.cache, 0o755)
}

func fileURL(name string) string { return "file://" + filepath.ToSlash(name) }

// publish adds the version of a module that a commit or tree of a repository would be, once it has the module's tag.
func (p *proxy) publish(repo, revision string, m mod, version string, at time.Time) (err error) {
	escaped, err := module.EscapePath(m.path)
	if err != nil {
		return err
	}
	dir := filepath.Join(p.dir, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{version, at.UTC()})
	if err != nil {
		return err
	}
	goMod, err := os.ReadFile(m.file(repo, "go.mod"))
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{"list": []byte(version + "\n"), version + ".info": info, version + ".mod": goMod} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	f, err := os.Create(filepath.Join(dir, version+".zip"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return zip.CreateFromVCS(f, module.Version{Path: m.path, Version: version}, repo, revision, m.dir)
}

// command is the go command in dir, as it would be for a user after the release.
//
// The checksum database knows nothing of what is not released yet, and is not asked about the rest: that is in the go.sum
// files already, which are not allowed to change in a release.
func (p *proxy) command(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PWD="+dir, "GOENV=off", "GOWORK=off", "GOFLAGS=-mod=mod -modcacherw -trimpath", "GOSUMDB=off",
		"GOPRIVATE=", "GONOPROXY=", "GOPROXY="+fileURL(p.dir)+","+p.goproxy, "GOMODCACHE="+p.cache)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// tryModule builds every package of a module in a module of its own that had required nothing.
func (p *proxy) tryModule(ctx context.Context, dir string, m mod, version string) error {
	dir, err := os.MkdirTemp(dir, "try-")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module try\n\ngo 1.26.0\n"), 0o644); err != nil {
		return err
	}
	if _, err = p.command(ctx, dir, "get", m.path+"@"+version); err != nil {
		return err
	}
	_, err = p.command(ctx, dir, "build", m.path+"/...")
	return err
}
