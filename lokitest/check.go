package lokitest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/lokilock/loki"
)

// Check tests a handler as [Run] does, without a test: for a tool, or for a person who tries a store out. It returns an
// error for each clause that the handler breaks, joined, each with the sentence of the contract that was broken; nil if it
// breaks none. Capabilities that the handler does not have are not tested.
//
// Check uses the handler from many goroutines at once, and takes some seconds. It may be called inside a testing/synctest
// bubble. If ctx ends first, the error matches its error as well, and says only what was found until then.
func Check(ctx context.Context, handler loki.LockHandler) error {
	if handler == nil {
		return errors.New("lokitest: the handler is nil, there is nothing to test")
	}
	clauses := clausesFor(probeCapabilities(ctx, handler))
	broken := make([]error, len(clauses)+1)
	judge := func(i int) {
		if v := clauses[i].judge(ctx, handler); v.broken != "" {
			broken[i] = errors.New("lokitest: " + v.broken)
		}
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0)) // as many at once as Run has
	for i, c := range clauses {
		if c.first {
			if judge(i); broken[i] != nil {
				return broken[i]
			}
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			judge(i)
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		broken[len(clauses)] = fmt.Errorf("lokitest: not every clause was tested: %w", ctx.Err())
	}
	return errors.Join(broken...)
}
