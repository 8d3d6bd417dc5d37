package lokitest

import (
	"context"
	"slices"

	"github.com/lokilock/loki"
)

// clause is one sentence of the contract and the experiment that would show it broken.
type clause struct {
	name  string
	law   string     // the words of the contract, as they stand there
	needs capability // none if empty
	check func(*probe)

	// first is for a clause that is tested before the others and alone, and ends the test if it is broken: the handler
	// would keep each of the others waiting, and none would say why.
	first bool

	// byGrant makes the experiment with Grant in the place of Lock, byExtendAll with ExtendAll in that of Extend, byReleaseHeld
	// with ReleaseHeld in that of Release.
	byGrant, byExtendAll, byReleaseHeld bool
}

// verdict is what came of one clause.
type verdict struct {
	broken string // how the clause was broken; empty if it was kept
	notes  []string
}

// clausesFor are the clauses that a handler with these capabilities has to keep, the first ones in front. Those of
// LockHandler come twice for a Granter, since Grant follows every rule of Lock, those of an Extender twice for a BatchExtender,
// and those about a release twice for a Releaser.
func clausesFor(has map[capability]bool) []clause {
	var all []clause
	for _, c := range handlerClauses() {
		all = append(all, c)
		if has[granter] {
			c.name, c.byGrant = "Grant/"+c.name, true
			all = append(all, c)
		}
	}
	for _, c := range capabilityClauses() {
		if has[c.needs] {
			all = append(all, c)
		}
	}
	if has[batchExtender] && has[extender] {
		for _, c := range slices.Concat(extendClauses, extendRaceClauses) {
			c.name, c.byExtendAll = "ExtendAll/"+c.name, true
			all = append(all, c)
		}
	}
	if !has[releaser] {
		return all
	}
	for _, c := range slices.Concat(releaseClauses, releaseRaceClauses, releasedClauses, notifyClauses) {
		if c.needs == "" || has[c.needs] {
			c.name, c.byReleaseHeld = "ReleaseHeld/"+c.name, true
			all = append(all, c)
		}
	}
	return all
}

// handlerClauses are those of LockHandler and Claim, in the order of the contract.
func handlerClauses() []clause {
	return slices.Concat(lockClauses, expiryClauses, releaseClauses, contextClauses, raceClauses, releaseRaceClauses, keyClauses, mirrorClauses)
}

func capabilityClauses() []clause {
	return slices.Concat(grantClauses, fenceClauses, releasedClauses, extendClauses, extendRaceClauses, batchClauses, releaserClauses, notifyClauses, inspectClauses, leftClauses)
}

// judge holds h to the clause. It knows no *testing.T, so that the suite can be put to the test itself.
func (c clause) judge(ctx context.Context, h loki.LockHandler) verdict {
	p := newProbe(ctx, c, h)
	p.run(func() { c.check(p) })
	p.cleanUp()
	return p.verdict
}
