package exec

import (
	"fmt"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/program"
)

// Listing is in which order a device is told a program's calls, and what each stream waits for before.
type Listing struct {
	waits []wait
	upTo  []int // by instruction: the end of its waits in waits
}

// wait is a wait of a stream for a call, by its number in the program.
type wait struct {
	stream device.Stream
	call   int
}

// NewListing returns the listing of a program.
func NewListing(p *program.Program) (*Listing, error) {
	l := new(Listing)
	for i := range p.Instrs {
		in := &p.Instrs[i]
		for _, w := range in.Waits {
			if w < 0 || w >= i {
				return nil, fmt.Errorf("exec: i%d waits for i%d, which does not come before it", i, w)
			}
			l.waits = append(l.waits, wait{in.Stream, w})
		}
		l.upTo = append(l.upTo, len(l.waits))
	}
	return l, nil
}

// Launch tells a device all calls, of which first is the first as Prepare has numbered them. It makes no decisions and
// allocates nothing.
func (l *Listing) Launch(d device.Device, first int) {
	n := 0
	for i, end := range l.upTo {
		for ; n < end; n++ {
			d.Wait(l.waits[n].stream, first+l.waits[n].call)
		}
		d.Launch(first + i)
	}
}
