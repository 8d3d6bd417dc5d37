package main

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// place is where a run was made: what somebody needs who compares it with a run of theirs. It has no names of hosts or users.
type place struct {
	cpu     string
	cores   int
	kernel  string
	load    float64 // the average of the minute before the run; -1 where there is none
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
	p := place{cpu: cpuModel(), cores: runtime.NumCPU(), kernel: kernel(), load: loadAverage(), program: map[string]string{
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

func loadAverage() float64 {
	text, _ := os.ReadFile("/proc/loadavg")
	one, _, _ := strings.Cut(string(text), " ")
	load, err := strconv.ParseFloat(one, 64)
	if err != nil {
		return -1
	}
	return load
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
