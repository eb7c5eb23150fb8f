// Package filelock locks files against other processes, as long as these ask too.
//
// A lock ends with the file that holds it, also when the process is killed: who gets the lock of a file that
// somebody wrote knows that he is gone.
//
// Known weakness: some file systems and systems have no locks.
package filelock
