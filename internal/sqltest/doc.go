// Package sqltest is the tests that every SQL handler runs on a real server: what lokitest, the conformance suite for any
// store, cannot ask because it does not know that there is a table. It has the same suite for all of them, so that one
// handler cannot promise less than another.
//
// It is internal because it is made for the handlers of this repository: it reads their tables, and it changes whenever they
// do. A store of somebody else is tested by lokitest.Run. The postgreshandler module may import it since its path begins with
// this module's, and its tests run in this repository, where both are of the same commit.
package sqltest
