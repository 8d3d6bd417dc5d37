package sqltest

import (
	"testing"
)

// Open returns a store for one test. Its table is there, and empty but for the keys of other tests. If ownPool is true no
// other test uses its pool.
type Open func(t *testing.T, ownPool bool) *Store

// Run runs the suite, each test in parallel with others.
func Run(t *testing.T, open Open) {
	t.Helper()
	for _, test := range []struct {
		name    string
		ownPool bool
		run     func(*testing.T, *Store)
	}{
		{"EachOperation", false, testEachOperation},
		{"ReleaseReportsWhatItFound", false, testReleaseReportsWhatItFound},
		{"ExpiredClaimsAreOver", false, testExpiredClaimsAreOver},
		{"SupersededClaimsAreReplaced", false, testSupersededClaimsAreReplaced},
		{"ExpiryIsByTheServersClock", false, testExpiryIsByTheServersClock},
		{"ExpiryEnds", false, testExpiryEnds},
		{"FencesFollowTheClockTheRowAndTheFloor", false, testFences},
		{"FenceAheadOfTheClockOutlivesItsRelease", false, testFenceAheadOfTheClock},
		{"FencesGrowUnderContention", false, testFencesGrowUnderContention},
		{"OneOfManyWins", false, testOneOfManyWins},
		{"SameClaimAtOnceIsGrantedTwice", false, testSameClaimAtOnce},
		{"RandomClaimsExcludeEachOther", false, testRandomClaims},
		{"PoolOfOneIsLeftAsItWas", true, testPoolOfOne},
		{"ClaimsAreInNoTransactionOfTheApplication", true, testForeignTransaction},
		{"ClaimsOutliveTheirConnections", true, testClaimsOutliveTheirConnections},
		{"ContextEndsWhileWaiting", true, testContextEndsWhileWaiting},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, open(t, test.ownPool))
		})
	}
	for name, keys := range keys {
		t.Run("Keys/"+name, func(t *testing.T) {
			t.Parallel()
			testKeys(t, open(t, false), keys)
		})
	}
}
