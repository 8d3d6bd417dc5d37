package redishandler_test

// This file reads MONITOR.

import (
	"bufio"
	"io"
	"regexp"
	"strings"
)

func readLines(r io.Reader, lines chan<- string) {
	for s := bufio.NewScanner(r); s.Scan(); {
		lines <- strings.TrimRight(s.Text(), "\r")
	}
	close(lines)
}

var monitorLine = regexp.MustCompile(`^\+[\d.]+ \[\d+ ([^\]]+)\] "([^"]+)"`)

// monitored is from which connection a command came, and which; not one of a script.
func monitored(line string) (from, name string, ok bool) {
	m := monitorLine.FindStringSubmatch(line)
	if m == nil || m[1] == "lua" {
		return "", "", false
	}
	return m[1], strings.ToLower(m[2]), true
}
