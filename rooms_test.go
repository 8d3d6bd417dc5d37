package loki_test

// This file holds the module to its plan: who imports whom, what go.mod may require, who may touch the core's state.

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	module     = "github.com/lokilock/loki"
	goRedis    = "github.com/redis/go-redis/v9"
	goMSSQL    = "github.com/microsoft/go-mssqldb"
	sqlxModule = "github.com/jmoiron/sqlx"
	testify    = "github.com/stretchr/testify"
)

// room is what one package of the module may import besides the standard library.
type room struct {
	imports []string
	tests   []string // its tests may import these too, and what is in testTools
	rule    string   // what is broken by anything else
}

const handlerRule = "a handler imports the core and its own driver, and does not know another handler"

const mechanismRule = "a mechanism knows nothing of locks"

// rooms is the map of the module. The root is "loki", everything else goes by its folder.
var rooms = map[string]room{
	"loki": {
		imports: []string{"internal/agenda", "internal/eventqueue", "internal/keyqueue", "internal/retry"},
		tests:   []string{"redishandler", "mssqlhandler", "migrations", goRedis, goMSSQL, sqlxModule},
		rule:    "the core imports no handler and no driver: it does not know any store",
	},
	"redishandler": {imports: []string{"loki", "internal/redisstore", goRedis}, rule: handlerRule},
	"redlockhandler": {
		imports: []string{"loki", "internal/redisstore", "internal/retry", goRedis},
		tests:   []string{"redishandler"}, // looks at one server alone
		rule:    handlerRule,
	},
	"internal/redisstore": {imports: []string{"loki", "internal/retry", goRedis}, rule: "what Redis stores have in common knows no handler"},
	"sqlhandler":          {imports: []string{"loki"}, rule: "what SQL stores have in common goes through database/sql, and knows no driver and no database"},
	"mssqlhandler": {
		imports: []string{"loki", "sqlhandler", "internal/mssqlname", "internal/mssqltable", sqlxModule, goMSSQL},
		tests:   []string{"migrations"},
		rule:    handlerRule,
	},
	"memhandler": {imports: []string{"loki", "internal/fanout", "internal/retry"}, rule: handlerRule},
	"migrations": {
		imports: []string{"internal/mssqlname", "internal/mssqltable", goMSSQL},
		tests:   []string{"mssqlhandler", sqlxModule},
		rule:    "migrations know names and their driver, and nothing of locks",
	},
	"lokitest":            {imports: []string{"loki", "internal/retry"}, rule: "the suite imports the core alone, and is the same for every handler"},
	"internal/mssqlname":  {rule: "names become T-SQL without anybody's help"},
	"internal/mssqltable": {imports: []string{"internal/mssqlname"}, rule: "what a table has to look like is told by names and the catalog, and nothing of locks"},
	"internal/agenda":     {rule: mechanismRule},
	"internal/eventqueue": {rule: mechanismRule},
	"internal/fanout":     {rule: mechanismRule},
	"internal/keyqueue":   {rule: mechanismRule},
	"internal/retry":      {rule: mechanismRule},
	"internal/simulation": {
		imports: []string{"loki", "lokitest", "memhandler", "internal/retry"},
		rule:    "a simulation plays the core on stores in memory",
	},
	"internal/sqltest":    {imports: []string{"loki", "sqlhandler", testify}, rule: "the suite of the SQL handlers knows no driver and no database"},
	"internal/redistest":  {imports: []string{goRedis}, rule: "a Redis server for tests knows its client, and nothing of locks"},
	"internal/faultproxy": {rule: "the proxy looks at bytes, and knows neither a protocol nor a lock"},
}

// testTools is what any test may import.
var testTools = []string{"loki", "lokitest", "memhandler", "internal/redistest", "internal/faultproxy", "internal/sqltest", testify}

func TestRoomsImportWhatTheyMay(t *testing.T) {
	seen := make(map[string]bool)
	for _, f := range goFiles(t) {
		if f.leaf {
			continue
		}
		name := path.Dir(f.path)
		if name == "." {
			name = "loki"
		}
		r, known := rooms[name]
		if !known {
			if !seen[name] {
				t.Errorf("%s has no room: say in rooms_test.go, .golangci.yml and CONTRIBUTING.md what it may import", name)
			}
			seen[name] = true
			continue
		}
		seen[name] = true
		allowed := r.imports
		if f.test {
			allowed = slices.Concat(allowed, r.tests, testTools, []string{name})
		}
		for _, spec := range f.syntax.Imports {
			imported := strings.Trim(spec.Path.Value, `"`)
			if !isStandard(imported) && !covers(allowed, shorten(imported)) {
				t.Errorf("%s imports %s: %s", f.path, shorten(imported), r.rule)
			}
		}
	}
	for name := range rooms {
		if !seen[name] {
			t.Errorf("rooms_test.go has a room for %s, which is not there: take it off the map", name)
		}
	}
}

// isStandard tells the packages of the standard library from others as the go command does: no domain begins their path.
func isStandard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

// shorten calls the module's own packages by their names on the map.
func shorten(imported string) string {
	if imported == module {
		return "loki"
	}
	return strings.TrimPrefix(imported, module+"/")
}

// covers reports whether imported is one of what is allowed, or inside it.
func covers(allowed []string, imported string) bool {
	return slices.ContainsFunc(allowed, func(a string) bool { return imported == a || strings.HasPrefix(imported, a+"/") })
}

func TestRootModuleRequiresWhatItMay(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json").Output()
	require.NoError(t, err)
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	require.NoError(t, json.Unmarshal(out, &mod))
	require.NotEmpty(t, mod.Require)
	for _, r := range mod.Require {
		if !r.Indirect && !slices.Contains([]string{goRedis, goMSSQL, sqlxModule, testify}, r.Path) {
			t.Errorf("go.mod requires %s: whoever requires Loki gets it too; what needs more than the two drivers, sqlxModule and (in tests) testify is a module of its own", r.Path)
		}
	}
}

// The rules of the core that keep its state in few hands. What a rule allows is a file each.
func TestCoreKeepsToItsPlaces(t *testing.T) {
	for rule, r := range map[string]struct {
		pattern *regexp.Regexp
		allowed []string
	}{
		"the mutex of a lease is locked by its own methods alone": {regexp.MustCompile(`\bls\.mu\.`), []string{"lease.go", "lease_records.go", "handover.go"}},
		"one agenda has every lease's timer; others time a call, a wait or a probe": {
			regexp.MustCompile(`time\.(AfterFunc|NewTimer|After|NewTicker|Tick)\(`), []string{"call.go", "batch.go", "wait.go", "health.go", "lease.go", "reconcile.go"},
		},
		"the modes name the secondary, and what puts a Locker together": {
			regexp.MustCompile(`\b(m|l|ls\.locker)\.secondary\b`), []string{"loki.go", "mode.go", "async.go", "sync.go", "lease.go"},
		},
	} {
		for _, f := range goFiles(t) {
			if path.Dir(f.path) != "." || f.test || slices.Contains(r.allowed, f.path) {
				continue
			}
			text, err := os.ReadFile(f.path)
			require.NoError(t, err)
			if found := r.pattern.FindString(string(text)); found != "" {
				t.Errorf("%s has %q: %s", f.path, found, rule)
			}
		}
	}
}

// goFile is one Go file of the repository, whatever system it is for.
type goFile struct {
	path   string // from the root, with slashes
	test   bool
	leaf   bool      // of a module of its own
	syntax *ast.File // as far as the imports
}

func goFiles(t *testing.T) []goFile {
	t.Helper()
	var files []goFile
	leaves := make(map[string]bool) // the folders inside modules of their own
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if base := entry.Name(); name != "." && (base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_")) {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(name, "go.mod")); name != "." && err == nil || leaves[filepath.Dir(name)] {
				leaves[name] = true
			}
			return nil
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		syntax, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		files = append(files, goFile{
			path:   filepath.ToSlash(name),
			test:   strings.HasSuffix(name, "_test.go"),
			leaf:   leaves[filepath.Dir(name)],
			syntax: syntax,
		})
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files
}
