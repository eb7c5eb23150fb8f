package cuda

import (
	"fmt"
	"os"
	"strconv"
)

// An experiment, not to stay: variants of Hopper's backward kernels.
type backwardKnobs struct{ early, ahead, stagger, qcopiers, kcopiers, held, soon int }

type backwardVariant struct {
	name         string
	narrow, wide backwardKnobs // heads of at most 64; more
}

var backwardVariants = []backwardVariant{
	{name: "present"},
	{"late, 2 ahead", backwardKnobs{0, 2, 0, 0, 0, 0, 0}, backwardKnobs{0, 2, 0, 0, 0, 0, 0}},
	{"early, 2 ahead | late, 1 ahead", backwardKnobs{1, 2, 0, 0, 0, 0, 0}, backwardKnobs{0, 1, 0, 0, 0, 0, 0}},
	{"early, soon", backwardKnobs{1, 2, 0, 0, 0, 0, 1}, backwardKnobs{0, 2, 0, 0, 0, 0, 1}},
	{"staggered", backwardKnobs{1, 2, 1, 0, 0, 0, 1}, backwardKnobs{0, 1, 1, 0, 0, 0, 0}},
	{"copiers", backwardKnobs{1, 2, 0, 1, 1, 0, 0}, backwardKnobs{0, 2, 0, 1, 0, 0, 1}},
	{"copiers, staggered", backwardKnobs{1, 2, 1, 1, 1, 0, 0}, backwardKnobs{0, 1, 1, 1, 0, 0, 1}},
	{"copiers, staggered, held", backwardKnobs{1, 2, 1, 1, 1, 2, 0}, backwardKnobs{0, 1, 1, 0, 0, 0, 1}},
	{"copiers, held", backwardKnobs{1, 2, 0, 1, 1, 2, 0}, backwardKnobs{0, 1, 0, 1, 0, 0, 1}},
}

var (
	backwardNow = func() int { n, _ := strconv.Atoi(os.Getenv("ATHANOR_BWD")); return n }()
	backwardOf  = "" // only this kernel runs
)

func knobs(head int) backwardKnobs {
	if v := backwardVariants[backwardNow]; head > 64 {
		return v.wide
	} else {
		return v.narrow
	}
}

// places is the number of buffers.
func (k backwardKnobs) places() int { return k.ahead + 2 + max(k.early, k.stagger) }

func backwardDefines(file string, head int) string {
	if file != "attention_bwd_next" {
		return ""
	}
	k := knobs(head)
	return fmt.Sprintf(" EARLY=%d AHEAD=%d STAGGER=%d QCOPIERS=%d KCOPIERS=%d HELD=%d SOON=%d", k.early, k.ahead, k.stagger, k.qcopiers, k.kcopiers, k.held, k.soon)
}

var nextBackward = attentionBackward{
	file: "attention_bwd_next",
	queries: func(head int) attentionBlock {
		k := knobs(head)
		return attentionBlock{128, 256 + 128*k.qcopiers, 1024 + packed(head, k.places()*2*64) + spread(head, 2*128), 4 * 128}
	},
	keys: func(head int) attentionBlock {
		k := knobs(head)
		own := packed(head, 2*128)
		if k.held > 0 {
			own = spread(head, 2*128)
		}
		return attentionBlock{128, 256 + 128*k.kcopiers, 1024 + packed(head, k.places()*2*64) + own + k.places()*4*2*64, k.places() * 4 * 64}
	},
}
