//go:build !linux

package pool

import "runtime"

// bed is where a helper sleeps: a channel with room for one token.
type bed struct{ token chan struct{} }

// lie prepares for sleep: from here on wake may be called.
func (b *bed) lie() {
	if b.token == nil {
		b.token = make(chan struct{}, 1)
	}
}

// rise undoes lie without sleeping. Nobody may call wake any more.
func (b *bed) rise() {}

// sleep waits for wake.
func (b *bed) sleep() { <-b.token }

// wake ends the sleep that lie prepared.
func (b *bed) wake(int) { b.token <- struct{}{} }

// core returns -1: unknown.
func core() int { return -1 }

// GiveWay yields to other goroutines. Long polling loops must call it now and then.
func GiveWay() { runtime.Gosched() }
