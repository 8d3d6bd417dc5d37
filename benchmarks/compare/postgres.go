package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/lokilock/loki/benchmarks/internal/rig"
	"github.com/lokilock/loki/postgreshandler"
	"github.com/lokilock/loki/postgreshandler/migrations"
)

// startPostgres returns a handler on a PostgreSQL of its own, which ends with tb: without fsync, since the disk is not what is
// measured, and by a socket of the file system, so that it needs no port. The tests of postgreshandler start theirs in much the
// same way, in a package that only they may import.
func startPostgres(tb *rig.Rig) (*postgreshandler.Handler, error) {
	dir, err := os.MkdirTemp("", "loki-bench-")
	if err != nil {
		return nil, err
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	owner, err := postgresOwner(dir)
	if err != nil {
		return nil, err
	}
	initdb, err := findInitdb()
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	command := func(program string, args ...string) (*exec.Cmd, *bytes.Buffer) {
		var output bytes.Buffer
		cmd := exec.CommandContext(context.Background(), filepath.Join(filepath.Dir(initdb), program), args...)
		cmd.Stdout, cmd.Stderr, cmd.Dir = &output, &output, dir
		cmd.SysProcAttr = dieWithParent()
		cmd.SysProcAttr.Credential = owner
		return cmd, &output
	}
	cmd, output := command("initdb", "-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("initdb: %w: %s", err, output)
	}
	cmd, output = command("postgres", "-D", data, "-c", "listen_addresses=", "-c", "unix_socket_directories="+dir, "-c", "fsync=off")
	ended, err := startAndWait(cmd)
	if err != nil {
		return nil, err
	}
	tb.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // ends its sessions; it has to remove its shared memory itself
		<-ended
	})
	dsn := "host=" + dir + " user=postgres dbname=postgres"
	if err := migrate(dsn, ended); err != nil {
		return nil, fmt.Errorf("%w: %s", err, output)
	}
	h, err := postgreshandler.Open(dsn)
	if err != nil {
		return nil, err
	}
	tb.Cleanup(func() { _ = h.Close() })
	return h, nil
}

func findInitdb() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		return path, nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // Debian keeps it out of PATH
	if len(found) == 0 {
		return "", errors.New("there is no initdb: run `make bench`, which installs PostgreSQL, or install the package postgresql")
	}
	return slices.Max(found), nil
}

// migrate makes the tables as soon as the server answers.
func migrate(dsn string, ended <-chan struct{}) error {
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	for end := time.Now().Add(postgresStarts); ; {
		err := migrations.Apply(context.Background(), db)
		if err == nil || time.Now().After(end) {
			return err
		}
		select {
		case <-ended:
			return errors.New("postgres has ended")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

const postgresStarts = 30 * time.Second

// startAndWait starts a program on a goroutine that keeps its thread until the program has ended: the kernel sends the death
// signal when the thread that started it ends, and Go ends threads as it likes.
func startAndWait(cmd *exec.Cmd) (ended <-chan struct{}, err error) {
	over, started := make(chan struct{}), make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(over)
		}
	}()
	return over, <-started
}

// postgresOwner returns who the server runs as, and gives dir to them. PostgreSQL refuses to run as root.
func postgresOwner(dir string) (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	uid, uidErr := strconv.Atoi(u.Uid)
	gid, gidErr := strconv.Atoi(u.Gid)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, os.Chown(dir, uid, gid)
}
