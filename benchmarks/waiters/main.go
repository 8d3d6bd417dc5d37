// Command waiters measures how a lock goes from hand to hand: how many waiters a second are woken and served, and how
// many commands of the store each hand-over takes, for growing numbers of waiters and processes.
//
// It does not compare with other libraries.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lokilock/loki"
	"github.com/lokilock/loki/benchmarks/internal/rig"
	"github.com/lokilock/loki/internal/redistest"
	"github.com/lokilock/loki/redishandler"
)

// The flags of a worker process, which this program starts from itself.
const (
	workerAddr = "worker-addr"
	expiry     = 10 * time.Second
)

func main() {
	rig.Silence()
	each := flag.Duration("each", 2*time.Second, "how long each row is measured")
	most := flag.Int("waiters", 1000, "the largest number of waiters")
	addr := flag.String(workerAddr, "", "be a worker on this server (used by the program itself)")
	waiters := flag.Int("worker-waiters", 0, "how many waiters the worker has")
	flag.Parse()

	var err error
	if *addr != "" {
		err = work(*addr, *waiters)
	} else {
		err = curve(os.Stdout, *each, *most)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "waiters:", err)
		os.Exit(1)
	}
}

// curve prints the table.
func curve(out io.Writer, each time.Duration, most int) error {
	return rig.Run(func(tb *rig.Rig) error {
		server := redistest.Start(tb)
		fmt.Fprintln(out, "processes  waiters   hand-overs/s   commands each")
		for _, processes := range []int{1, 2, 4} {
			for _, n := range []int{1, 10, 100, 1000} {
				if n > most || n < processes {
					continue
				}
				turns, commands, err := measure(server.Addr(), processes, n, each)
				if err != nil {
					return err
				}
				fmt.Fprintf(out, "%9d  %7d  %13.0f  %14.2f\n", processes, n, float64(turns)/each.Seconds(), float64(commands)/float64(max(turns, 1)))
			}
		}
		return nil
	})
}

// measure has waiters in processes take one lock in turn, and counts.
func measure(addr string, processes, waiters int, each time.Duration) (turns, commands int64, err error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { err = errors.Join(err, rdb.Close()) }()
	ctx := context.Background()
	var workers []*worker
	defer func() {
		for _, w := range workers {
			w.kill()
		}
	}()
	for i := range processes {
		n := waiters / processes
		if i < waiters%processes {
			n++
		}
		w, err := startWorker(ctx, addr, n)
		if err != nil {
			return 0, 0, err
		}
		workers = append(workers, w)
	}
	for _, w := range workers { // each says when its waiters are in line
		if _, err := w.line(); err != nil {
			return 0, 0, err
		}
	}
	before, err := lockCommands(ctx, rdb)
	if err != nil {
		return 0, 0, err
	}
	for _, w := range workers {
		if _, err := fmt.Fprintln(w.in, "go"); err != nil {
			return 0, 0, err
		}
	}
	time.Sleep(each)
	for _, w := range workers {
		if _, err := fmt.Fprintln(w.in, "stop"); err != nil {
			return 0, 0, err
		}
	}
	for _, w := range workers {
		n, err := w.line()
		if err != nil {
			return 0, 0, err
		}
		turns += n
	}
	for _, w := range workers {
		if err := w.wait(); err != nil {
			return 0, 0, err
		}
	}
	after, err := lockCommands(ctx, rdb)
	return turns, after - before, err
}

// lockCommands is how many requests the server has had from clients that take or wait for locks: scripts and
// subscriptions, not what the scripts do inside.
func lockCommands(ctx context.Context, rdb *redis.Client) (sum int64, err error) {
	info, err := rdb.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(info, "\r\n") {
		name, stats, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !ok {
			continue
		}
		switch name {
		case "eval", "evalsha", "subscribe", "unsubscribe":
			calls, _, _ := strings.Cut(stats, ",")
			n, err := strconv.ParseInt(calls, 10, 64)
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, nil
}

// worker is one process with waiters, as its parent sees it.
type worker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startWorker(ctx context.Context, addr string, waiters int) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-"+workerAddr, addr, "-worker-waiters", strconv.Itoa(waiters))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &worker{cmd: cmd, in: in, out: bufio.NewReader(out)}, cmd.Start()
}

// line reads the number that the worker says next.
func (w *worker) line() (int64, error) {
	s, err := w.out.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("a worker has ended: %w", err)
	}
	return strconv.ParseInt(strings.TrimSpace(s), 10, 64)
}

// wait returns when the worker has ended by itself.
func (w *worker) wait() error {
	if err := w.cmd.Wait(); err != nil {
		return fmt.Errorf("a worker failed: %w", err)
	}
	return nil
}

// kill ends a worker that has not ended by itself, because something failed.
func (w *worker) kill() {
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
}

// work is a worker process: its waiters acquire the lock in turn from "go" to "stop", at least once, and it prints how
// often they did.
func work(addr string, waiters int) (err error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { err = errors.Join(err, rdb.Close()) }()
	locker, err := loki.NewBuilder().SetServiceKey("waiters").SetPrimaryLockHandler(redishandler.New(rdb)).Build()
	if err != nil {
		return err
	}
	in := bufio.NewReader(os.Stdin)
	fmt.Println(0)
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var turns atomic.Int64
	served := make(chan struct{}) // closed at the first turn
	var wg sync.WaitGroup
	for range waiters {
		wg.Go(func() {
			for ctx.Err() == nil {
				_ = locker.ExecuteWithinLock(ctx, expiry, func(context.Context) error {
					if turns.Add(1) == 1 {
						close(served)
					}
					return nil
				}, loki.WithWait(loki.UntilDone))
			}
		})
	}
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	<-served
	n := turns.Load()
	stop()
	wg.Wait()
	// The count comes last: a worker that its parent ended while a rollback was due would leave the lock to the next row.
	if err := locker.Close(context.Background()); err != nil {
		return err
	}
	fmt.Println(n)
	return nil
}
