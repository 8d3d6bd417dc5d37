package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

// release is one that has been made and tried in a clone.
type release struct {
	repo, clone string
	base        string // the commit that it is made from
	version     string
	modules     []mod // all of them
	released    []mod
	proxy       *proxy
}

// prepare makes the release in dir: the commits and tags, in a clone, and a proxy that serves them.
func prepare(ctx context.Context, repo, version, dir string, at time.Time) (*release, error) {
	r := &release{version: version, clone: filepath.Join(dir, "clone")}
	var err error
	if r.repo, err = git(ctx, repo, "rev-parse", "--show-toplevel"); err != nil {
		return nil, err
	}
	if err := r.look(ctx); err != nil {
		return nil, err
	}
	if r.proxy, err = newProxy(ctx, dir); err != nil {
		return nil, err
	}
	if err := r.makeClone(ctx); err != nil {
		return nil, err
	}
	if err := r.commitRelease(ctx, at); err != nil {
		return nil, err
	}
	for _, m := range r.released {
		if err := r.proxy.tryModule(ctx, dir, m, version); err != nil {
			return nil, err
		}
	}
	return r, r.commitDevelopment(ctx)
}

// look reports everything that keeps the repository from being released.
func (r *release) look(ctx context.Context) error {
	var err error
	if r.modules, err = findModules(r.repo); err != nil {
		return err
	}
	tags, err := git(ctx, r.repo, "tag", "--list")
	if err != nil {
		return err
	}
	var problems []error
	if err := module.Check(r.modules[0].path, r.version); err != nil || semver.Canonical(r.version) != r.version {
		problems = append(problems, fmt.Errorf("%q is no version of %s: use one like v0.1.0", r.version, r.modules[0].path))
	}
	for _, m := range r.modules {
		if !m.isReleased() {
			continue
		}
		r.released = append(r.released, m)
		for tag := range strings.Lines(tags) {
			tag = strings.TrimSpace(tag)
			if last := strings.TrimPrefix(strings.TrimPrefix(tag, m.dir), "/"); m.tag(last) == tag && semver.Compare(last, r.version) >= 0 {
				problems = append(problems, fmt.Errorf("%s has the tag %s already: a version has to be larger, and is never made twice", m.path, tag))
			}
		}
	}
	changed, err := git(ctx, r.repo, "status", "--porcelain")
	if err != nil {
		return err
	}
	if changed != "" {
		problems = append(problems, fmt.Errorf("the tree is not clean:\n%s", changed))
	}
	r.base, err = git(ctx, r.repo, "rev-parse", "HEAD")
	return errors.Join(append(problems, err)...)
}

func (r *release) makeClone(ctx context.Context) error {
	if _, err := git(ctx, r.repo, "clone", "--quiet", "--no-checkout", r.repo, r.clone); err != nil {
		return err
	}
	if _, err := git(ctx, r.clone, "checkout", "--quiet", "--detach", r.base); err != nil {
		return err
	}
	for _, name := range []string{"user.name", "user.email"} { // the repository may have its own, which a clone has not
		if value, err := git(ctx, r.repo, "config", name); err == nil {
			if _, err := git(ctx, r.clone, "config", name, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// commitRelease makes the commit that the tags are for. Each module's version is published to the proxy as soon as its
// files are final, so that the go.sum of the next one has its checksum.
func (r *release) commitRelease(ctx context.Context, at time.Time) error {
	if err := r.dateChangelog(at); err != nil {
		return err
	}
	for _, m := range r.modules {
		if err := m.pin(r.clone, r.version, r.modules, m.isReleased()); err != nil {
			return err
		}
		if !m.isReleased() {
			continue
		}
		if err := r.tidy(ctx, m); err != nil {
			return err
		}
		if _, err := git(ctx, r.clone, "add", "--all"); err != nil {
			return err
		}
		tree, err := git(ctx, r.clone, "write-tree")
		if err != nil {
			return err
		}
		if err := r.proxy.publish(r.clone, tree, m, r.version, at); err != nil {
			return err
		}
	}
	if _, err := git(ctx, r.clone, "commit", "--quiet", "--all", "--message", "all: release "+r.version); err != nil {
		return err
	}
	for _, m := range r.released {
		tag := m.tag(r.version)
		if _, err := git(ctx, r.clone, "tag", "--annotate", "--message", m.path+" "+r.version, tag); err != nil {
			return err
		}
	}
	return nil
}

// tidy runs go mod tidy, which may add checksums of neighbours, and nothing else.
func (r *release) tidy(ctx context.Context, m mod) error {
	before, err := r.foreignSums(m)
	if err != nil {
		return err
	}
	pinned, err := os.ReadFile(m.file(r.clone, "go.mod"))
	if err != nil {
		return err
	}
	if _, err := r.proxy.command(ctx, filepath.Dir(m.file(r.clone, "go.mod")), "mod", "tidy"); err != nil {
		return err
	}
	tidied, err := os.ReadFile(m.file(r.clone, "go.mod"))
	if err != nil {
		return err
	}
	after, err := r.foreignSums(m)
	if err != nil {
		return err
	}
	if !bytes.Equal(pinned, tidied) || !slices.Equal(before, after) {
		return fmt.Errorf("the go.mod or go.sum of %s is not tidy: make tidy says what is missing", m.path)
	}
	return nil
}

// foreignSums returns the lines of go.sum that are about modules of others.
func (r *release) foreignSums(m mod) ([]string, error) {
	text, err := os.ReadFile(m.file(r.clone, "go.sum"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return slices.DeleteFunc(strings.Split(string(text), "\n"), func(line string) bool {
		return slices.ContainsFunc(r.modules, func(m mod) bool { return strings.HasPrefix(line, m.path+" ") })
	}), nil
}

const unreleasedHeading = "## [Unreleased]\n"

// dateChangelog gives what has been unreleased the version.
func (r *release) dateChangelog(at time.Time) error {
	name := filepath.Join(r.clone, "CHANGELOG.md")
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	before, after, found := strings.Cut(string(text), unreleasedHeading)
	if !found || strings.TrimSpace(after) == "" || strings.HasPrefix(strings.TrimSpace(after), "## ") {
		return errors.New("CHANGELOG.md has nothing under Unreleased: say what users notice in this version")
	}
	heading := fmt.Sprintf("\n## [%s] - %s\n", strings.TrimPrefix(r.version, "v"), at.UTC().Format(time.DateOnly))
	return os.WriteFile(name, []byte(before+unreleasedHeading+heading+after), 0o644)
}

// commitDevelopment brings the replace directives back. The modules require the version that has just been released, so
// that a user can also get a commit between releases.
func (r *release) commitDevelopment(ctx context.Context) error {
	if _, err := git(ctx, r.clone, "restore", "--source", r.base, "--staged", "--worktree", "--", ".", ":(exclude)CHANGELOG.md"); err != nil {
		return err
	}
	for _, m := range r.modules {
		if err := m.pin(r.clone, r.version, r.modules, false); err != nil {
			return err
		}
	}
	if changed, err := git(ctx, r.clone, "status", "--porcelain"); err != nil || changed == "" {
		return err // there is one module, which requires no other
	}
	_, err := git(ctx, r.clone, "commit", "--quiet", "--all", "--message", "all: back to development after "+r.version)
	return err
}

func (r *release) tags() []string {
	var all []string
	for _, m := range r.released {
		all = append(all, m.tag(r.version))
	}
	return all
}

// bringHome puts the commits and tags into the repository. The branch moves last, and only forward: if somebody has
// committed meanwhile it stays, and the tags can be deleted.
func (r *release) bringHome(ctx context.Context) error {
	args := []string{"fetch", "--quiet", "--no-tags", r.clone, "HEAD"}
	for _, tag := range r.tags() {
		args = append(args, "refs/tags/"+tag+":refs/tags/"+tag)
	}
	if _, err := git(ctx, r.repo, args...); err != nil {
		return err
	}
	head, err := git(ctx, r.clone, "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	_, err = git(ctx, r.repo, "merge", "--quiet", "--ff-only", head)
	return err
}

// git runs a command and returns what it printed, without the newline at the end.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(errOut.Bytes()))
	}
	return strings.TrimRight(out.String(), "\n"), nil
}
