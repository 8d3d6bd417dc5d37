// Package simulation plays the real code against the clock of a [testing/synctest] bubble: a few instances that share two
// stores, faults of every kind, and a referee that knows what was promised.
//
// What happens is a [Schedule], made from a seed and nothing else. Pauses are drawn from the same seed, and no two things
// happen at one instant but by chance, so a seed tells the same story again. A schedule that breaks a promise is cut down
// to the few calls and faults that it takes ([Shrink]).
//
// It does not look inside the Locker: it sees what users and stores see. And it does not stop a process: what a stall
// past the validity does is shown by real processes, in the proving ground.
package simulation
