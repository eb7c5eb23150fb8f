//go:build !linux

package pool

import "runtime"

// bed is where a helper sleeps: a channel with room for one token.
type bed struct{ token chan struct{} }

// lie makes ready for sleep: from here on wake may be called.
func (b *bed) lie() {
	if b.token == nil {
		b.token = make(chan struct{}, 1)
	}
}

// rise ends what lie began, if nobody can call wake any more.
func (b *bed) rise() {}

// sleep waits for wake and rises.
func (b *bed) sleep() { <-b.token }

// wake ends the sleep that lie announced.
func (b *bed) wake(int) { b.token <- struct{}{} }

// core is where the caller runs: unknown.
func core() int { return -1 }

// GiveWay lets others run. Who looks for something for long calls it now and then.
func GiveWay() { runtime.Gosched() }
