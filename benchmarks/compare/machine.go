package main

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// place is where a run was made: what somebody needs who compares it with a run of theirs. It has no names of hosts or users.
type place struct {
	cpu     string
	cores   int
	kernel  string
	others  float64 // the share of the processors that others used before the run
	program map[string]string
}

// The modules whose versions matter.
var modules = []string{
	"github.com/redis/go-redis/v9",
	"github.com/go-redsync/redsync/v4",
	"github.com/bsm/redislock",
	"github.com/redis/rueidis",
	"github.com/jackc/pgx/v5",
}

func look(ctx context.Context, rdb *redis.Client) (place, error) {
	info, err := rdb.Info(ctx, "server").Result()
	if err != nil {
		return place{}, err
	}
	p := place{cpu: cpuModel(), cores: runtime.NumCPU(), kernel: kernel(), others: othersTake(), program: map[string]string{
		"Go": runtime.Version(), "redis-server": field(info, "redis_version:"), "PostgreSQL": postgresVersion(ctx),
	}}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range build.Deps {
			p.program[dep.Path] = dep.Version
		}
	}
	return p, nil
}

func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	_, model, found := strings.Cut(field(string(text), "model name"), ":")
	if !found {
		return runtime.GOARCH
	}
	return strings.TrimSpace(model)
}

func kernel() string {
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(runtime.GOOS + " " + string(release))
}

// othersTake looks for a moment at how much of the processors is in use while this program does nothing. A load average would
// still show the compiler that made the program.
func othersTake() float64 {
	const moment = 500 * time.Millisecond
	busy, all := processorTimes()
	time.Sleep(moment)
	busyAfter, allAfter := processorTimes()
	if allAfter == all {
		return 0 // not Linux: nobody knows
	}
	return (busyAfter - busy) / (allAfter - all)
}

// processorTimes returns how long the processors have been busy, and have been there, in some unit.
func processorTimes() (busy, all float64) {
	text, _ := os.ReadFile("/proc/stat")
	for i, column := range strings.Fields(field(string(text), "cpu ")) {
		const idle, waiting, guest = 3, 4, 8 // a guest's time is in the others, too
		t, _ := strconv.ParseFloat(column, 64)
		if i >= guest {
			break
		}
		if all += t; i != idle && i != waiting {
			busy += t
		}
	}
	return busy, all
}

// field returns the rest of the first line that begins with prefix.
func field(text, prefix string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

func postgresVersion(ctx context.Context) string {
	initdb, err := findInitdb()
	if err != nil {
		return ""
	}
	out, _ := exec.CommandContext(ctx, initdb, "--version").Output()
	_, version, _ := strings.Cut(strings.TrimSpace(string(out)), ") ")
	return version
}
