// Command release makes a release of the repository's modules: a commit whose go.mod files need nothing but published
// versions, a tag for each module, and a commit that brings the tree back to development.
//
//	make release VERSION=v0.1.0               # a dry run
//	make release VERSION=v0.1.0 RELEASE=yes   # the commits and tags
//
// Everything is made and tried in a temporary clone, in a dry run too. The repository gets the commits and tags when all
// of it has succeeded, and nothing otherwise. CONTRIBUTING.md says how the modules are versioned.
//
// It does not push.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	version := flags.String("version", "", "the version of all modules, such as v0.1.0")
	repo := flags.String("repo", ".", "a folder of the repository")
	write := flags.Bool("write", false, "make the commits and tags in the repository; without it, this is a dry run")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "loki-release-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	r, err := prepare(ctx, *repo, *version, dir, time.Now())
	if err != nil {
		return err
	}
	stat, err := git(ctx, r.clone, "log", "--stat", "--reverse", "--format=%n%h %s", r.base+"..HEAD")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n\n", strings.TrimSpace(stat))
	for _, m := range r.released {
		fmt.Fprintf(out, "%-40s %s\n", m.tag(r.version), m.path)
	}
	fmt.Fprintln(out, "\nEach module has been installed and built from a proxy that serves these tags.")
	if !*write {
		fmt.Fprintf(out, "This was a dry run: make release VERSION=%s RELEASE=yes makes the commits and tags.\n", r.version)
		return nil
	}
	if err := r.bringHome(ctx); err != nil {
		return err
	}
	fmt.Fprintf(out, "The commits and tags are made, and not pushed:\n\n\tgit push --atomic origin HEAD %s\n", strings.Join(r.tags(), " "))
	return nil
}
