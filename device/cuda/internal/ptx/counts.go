package ptx

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// Counts is the cost of a launch, independent of the card.
type Counts struct {
	Blocks  int64
	Threads int // per block
	// Shared and Global are memory accesses, if Launch.Traffic is set.
	Shared, Global Traffic
	code           []instruction
	hits           []int64
}

// Traffic is the cost of accesses: Units as they are, Least with the best layout of the same bytes. For
// shared memory, a unit is a cycle in which each of 32 banks delivers a word; for global memory, a
// sector of 32 bytes.
type Traffic struct{ Units, Least int64 }

// access counts an access by the lanes of a set, each to size bytes.
func (c *Counts) access(w *warp, s space, base *[32]uint64, offset uint64, size int, set uint32) {
	if set == 0 || !w.launch.Traffic {
		return
	}
	if s == shared {
		c.Shared.Units += wavefronts(base, offset, size, set)
		c.Shared.Least += int64((bits.OnesCount32(set)*size + 127) / 128)
		return
	}
	var sectors []uint64
	n := 0
	for l := range lanes(set) {
		at := base[l] + offset
		for a := at / 32; a <= (at+uint64(size)-1)/32; a++ {
			sectors = append(sectors, a)
		}
		n += size
	}
	slices.Sort(sectors)
	c.Global.Units += int64(len(slices.Compact(sectors)))
	c.Global.Least += int64((n + 31) / 32)
}

// wavefronts returns the cycles of an access to shared memory: 8 lanes with 16 bytes each, 16 with 8, or 32
// with less are served together; among these, different words in one bank are serialised.
func wavefronts(base *[32]uint64, offset uint64, size int, set uint32) (total int64) {
	together := min(32, 128/size)
	for first := 0; first < 32; first += together {
		var words [32][]uint64
		most := 0
		for l := first; l < first+together; l++ {
			if set>>l&1 == 0 {
				continue
			}
			at := uint64(uint32(base[l] + offset))
			for a := at / 4; a <= (at+uint64(size)-1)/4; a++ {
				if bank := &words[a%32]; !slices.Contains(*bank, a) {
					*bank = append(*bank, a)
					most = max(most, len(*bank))
				}
			}
		}
		total += int64(most)
	}
	return total
}

// Instructions returns how often warps executed instructions whose opcode has the prefix; "" counts all.
func (c *Counts) Instructions(prefix string) (n int64) {
	for i, in := range c.code {
		if strings.HasPrefix(in.opcode, prefix) {
			n += c.hits[i]
		}
	}
	return n
}

// String lists opcodes by execution count.
func (c *Counts) String() string {
	sum := map[string]int64{}
	for i, in := range c.code {
		sum[in.opcode] += c.hits[i]
	}
	var names []string
	for name := range sum {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(sum[b], sum[a]), cmp.Compare(a, b)) })
	var b strings.Builder
	fmt.Fprintf(&b, "%d blocks of %d threads; shared memory %d cycles (at least %d), global memory %d sectors (at least %d)\n",
		c.Blocks, c.Threads, c.Shared.Units, c.Shared.Least, c.Global.Units, c.Global.Least)
	for _, name := range names {
		fmt.Fprintf(&b, "%12d  %s\n", sum[name], name)
	}
	return b.String()
}
