package loki_test

// This file is about real processes: the test binary runs itself as a worker, with lines of text for its orders and
// answers, and is killed when the test wants it.

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/redishandler"
)

// workerVar names the worker that a process is to be.
const workerVar = "LOKI_TEST_WORKER"

// workers are what a process can be. Each talks by lines.
var workers = map[string]func(*loki.Locker, *bufio.Scanner) error{
	"hold":   workHold,
	"rounds": workRounds,
	"stop":   workStop,
}

func runWorker(name string) int {
	work := workers[name]
	if work == nil {
		fmt.Fprintf(os.Stderr, "there is no worker %q\n", name)
		return 2
	}
	client := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS")})
	l, err := loki.New(loki.Config{ServiceKey: "job", Primary: redishandler.New(client), PrimaryTimeout: patience})
	if err == nil {
		err = work(l, bufio.NewScanner(os.Stdin))
	}
	if err == nil {
		err = l.Close(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// workHold holds the lock until a signal ends it.
func workHold(l *loki.Locker, _ *bufio.Scanner) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	expiry, err := time.ParseDuration(os.Getenv("EXPIRY"))
	if err != nil {
		return err
	}
	err = l.ExecuteWithinLock(ctx, expiry, func(ctx context.Context) error {
		fmt.Println("started")
		<-ctx.Done()
		return ctx.Err()
	})
	fmt.Println("returned", err)
	return nil
}

// workRounds runs one instant closure a line, and answers "ran" or "skipped".
func workRounds(l *loki.Locker, orders *bufio.Scanner) error {
	hold, err := time.ParseDuration(os.Getenv("HOLD"))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for orders.Scan() {
		answer := "skipped"
		err := l.ExecuteWithinLock(context.Background(), 10*time.Second, func(context.Context) error {
			answer = "ran"
			return nil
		}, loki.WithMinHold(hold), loki.WithResource(orders.Text()))
		if loki.IgnoreBusy(err) != nil {
			return err
		}
		fmt.Println(answer)
	}
	return orders.Err()
}

// workStop holds the lock, and leaves when it is asked to stop: with the context that has ended, and without a moment for
// anything in the background.
func workStop(l *loki.Locker, _ *bufio.Scanner) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ls, err := l.Acquire(ctx, time.Minute)
	if err != nil {
		return err
	}
	fmt.Println("started")
	<-ctx.Done()
	switch os.Getenv("LEAVE") {
	case "release":
		err = ls.Release(ctx)
	case "close":
		err = l.Close(ctx)
	}
	fmt.Println(err)
	os.Exit(0)
	return nil
}

// worker is a process that runs one of workers.
type worker struct {
	t      *testing.T
	cmd    *exec.Cmd
	orders io.Writer
	says   chan string // closed at the end
	wait   func() error
}

func startWorker(t *testing.T, name string, env ...string) *worker {
	t.Helper()
	w := &worker{t: t, cmd: exec.Command(os.Args[0]), says: make(chan string, 100)}
	w.cmd.Env = append(append(os.Environ(), workerVar+"="+name), env...)
	w.cmd.Stderr = os.Stderr
	orders, err := w.cmd.StdinPipe()
	require.NoError(t, err)
	w.orders = orders
	out, err := w.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, w.cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(w.says)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			w.says <- lines.Text()
		}
	}()
	w.wait = sync.OnceValue(func() error {
		_ = orders.Close()
		<-read
		return w.cmd.Wait()
	})
	t.Cleanup(func() {
		_ = w.cmd.Process.Kill()
		_ = w.wait()
	})
	return w
}

func (w *worker) signal(s os.Signal) error { return w.cmd.Process.Signal(s) }

// next is the worker's next line.
func (w *worker) next() string {
	w.t.Helper()
	select {
	case line, ok := <-w.says:
		require.True(w.t, ok, "the worker has ended: %v", w.cmd.ProcessState)
		return line
	case <-time.After(patience):
		require.FailNow(w.t, "the worker says nothing")
		return ""
	}
}

func (w *worker) requireSays(want string) {
	w.t.Helper()
	require.Equal(w.t, want, w.next())
}

// Five instances whose clocks agree to within the minimum hold: each round runs once. The same without it shows that
// the rounds would otherwise run more often.
func TestProcesses_EachRoundRunsOnce(t *testing.T) {
	t.Parallel()
	const processes, rounds = 5, 50
	run := func(t *testing.T, hold time.Duration) (counts []int) {
		r := startRedis(t)
		team := make([]*worker, processes)
		for i := range team {
			team[i] = startWorker(t, "rounds", "REDIS="+r.Addr(), "HOLD="+hold.String())
		}
		for _, w := range team {
			w.requireSays("ready")
		}
		for round := range rounds {
			start := time.Now()
			order := fmt.Sprintf("round %d\n", round)
			for _, w := range team {
				_, err := io.WriteString(w.orders, order)
				require.NoError(t, err)
			}
			ran := 0
			for _, w := range team {
				switch answer := w.next(); answer {
				case "ran":
					ran++
				case "skipped":
				default:
					require.Fail(t, "what is this?", answer)
				}
			}
			if hold > 0 {
				require.Less(t, time.Since(start), hold, "the machine is too slow for the spread that this test allows")
			}
			counts = append(counts, ran)
		}
		for _, w := range team {
			require.NoError(t, w.wait())
		}
		eventually(t, func() bool { return len(r.left()) == 0 }, "nothing is left in Redis")
		return counts
	}
	t.Run("with a minimum hold", func(t *testing.T) {
		t.Parallel()
		for round, ran := range run(t, 5*time.Second) {
			require.Equal(t, 1, ran, "round %d", round)
		}
	})
	t.Run("without", func(t *testing.T) {
		t.Parallel()
		doubles := 0
		for round, ran := range run(t, 0) {
			require.Positive(t, ran, "round %d", round)
			if ran > 1 {
				doubles++
			}
		}
		require.Positive(t, doubles, "without it no round ran twice: this test shows nothing")
	})
}

// A service that was asked to stop: https://github.com/google/trillian/issues/3789
func TestProcesses_ReleaseBeforeTheExit(t *testing.T) {
	t.Parallel()
	for _, leave := range []string{"release", "close"} {
		t.Run(leave, func(t *testing.T) {
			t.Parallel()
			r := startRedis(t)
			w := startWorker(t, "stop", "REDIS="+r.Addr(), "LEAVE="+leave)
			w.requireSays("started")
			require.NotEmpty(t, r.left())
			require.NoError(t, w.signal(syscall.SIGTERM))
			w.requireSays("<nil>")
			require.NoError(t, w.wait())
			require.Empty(t, r.left(), "the process has left the lock behind")
		})
	}
}

// Redis dies in the middle of a run, and comes back empty.
func TestProcesses_RedisIsKilledInMidRun(t *testing.T) {
	t.Parallel()
	bothModes(t, func(t *testing.T, m loki.MirrorMode) {
		onSecondaries(t, func(t *testing.T, s *caseStore) {
			r := startRedis(t)
			a, b := instance(t, r.handler(noRetries), s, mode(m)), instance(t, r.handler(noRetries), s, mode(m))
			expiry := max(s.expiry, 2*time.Second)
			h := hold(t, a, expiry)
			s.requireRow("job")
			r.Kill()
			dead := time.Now()
			for ; time.Since(dead) < expiry+expiry/2; time.Sleep(20 * time.Millisecond) {
				require.NoError(t, h.ctx.Err(), "the closure is interrupted after %v: %v", time.Since(dead), context.Cause(h.ctx))
				requireSkipped(t, b)
			}
			require.NoError(t, h.end())
			require.Equal(t, loki.Primary, h.out.Store)
			s.requireEmpty()
			require.Equal(t, loki.Secondary, requireRuns(t, b).Store)
			require.Equal(t, loki.Secondary, requireRuns(t, a).Store)

			r.Restart(t)
			for _, l := range []*loki.Locker{a, b} {
				eventually(t, func() bool {
					var out loki.Outcome
					err := l.ExecuteWithinLock(t.Context(), expiry, func(context.Context) error { return nil }, loki.WithOutcome(&out))
					if errors.Is(err, loki.ErrBusy) { // this one still asks the secondary, where the other one's release is on its way
						return false
					}
					require.NoError(t, err)
					return out.Store == loki.Primary
				}, "the primary is used again")
			}
			eventually(t, func() bool { return len(r.left()) == 0 }, "nothing is left in Redis")
			s.requireEmpty()
		})
	})
}
