package alloc

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"
)

// A Cache remembers solutions by the hash of their problem, for callers that
// pack the same program repeatedly, such as a plan search. The hash ignores
// buffer names. The zero value is ready to use; a nil *Cache remembers nothing.
// A Cache is safe for concurrent use and evicts nothing.
type Cache struct {
	mu      sync.Mutex
	entries map[[sha256.Size]byte]Solution
}

// Len returns the number of solutions remembered.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries)
}

func (c *Cache) get(p Problem, opt Options) (Solution, bool) {
	if c == nil {
		return Solution{}, false
	}
	key := fingerprint(p, opt)
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.entries[key]
	s.Offsets = slices.Clone(s.Offsets)
	return s, ok
}

func (c *Cache) put(p Problem, opt Options, s Solution) {
	if c == nil {
		return
	}
	key := fingerprint(p, opt)
	s.Offsets = slices.Clone(s.Offsets)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = make(map[[sha256.Size]byte]Solution)
	}
	c.entries[key] = s
}

// fingerprint hashes everything that can change the solution.
func fingerprint(p Problem, opt Options) [sha256.Size]byte {
	flat := int64(0)
	if opt.Flat {
		flat = 1
	}
	text := make([]byte, 0, 40*len(p.Buffers)+32)
	for _, v := range []int64{p.Capacity, opt.Nodes, int64(opt.Without), flat} {
		text = binary.LittleEndian.AppendUint64(text, uint64(v))
	}
	for i := range p.Buffers {
		b := &p.Buffers[i]
		for _, v := range [...]int64{b.Lower, b.Upper, b.Size, b.align(), b.Fixed} {
			text = binary.LittleEndian.AppendUint64(text, uint64(v))
		}
	}
	return sha256.Sum256(text)
}
