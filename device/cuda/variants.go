package cuda

import (
	"fmt"
	"os"
	"strconv"
)

// An experiment, not to stay: variants of Hopper's backward kernels.
type backwardVariant struct {
	name         string
	early, ahead int
	narrow       bool // early for heads of at most 64 only
	rows         int  // of queries, for heads of at most 64; 0: 128
	more         string
}

var backwardVariants = []backwardVariant{
	{name: "present"},
	{name: "late", early: 0, ahead: 1},
	{name: "late, 2 ahead", early: 0, ahead: 2},
	{name: "early", early: 1, ahead: 1, narrow: true},
	{name: "early, 2 ahead", early: 1, ahead: 2, narrow: true},
}

var backwardNow = func() int { n, _ := strconv.Atoi(os.Getenv("ATHANOR_BWD")); return n }()

func (v *backwardVariant) earlyOf(head int) int {
	if v.narrow && head > 64 {
		return 0
	}
	return v.early
}

func (v *backwardVariant) rowsOf(head int) int {
	if v.rows > 0 && head <= 64 {
		return v.rows
	}
	return 128
}

// places is the number of buffers.
func (v *backwardVariant) places(head int) int { return v.ahead + 2 + v.earlyOf(head) }

func backwardDefines(file string, head int) string {
	if file != "attention_bwd_next" {
		return ""
	}
	v := &backwardVariants[backwardNow]
	return fmt.Sprintf(" EARLY=%d AHEAD=%d ROWS=%d%s", v.earlyOf(head), v.ahead, v.rowsOf(head), v.more)
}

var nextBackward = attentionBackward{
	file: "attention_bwd_next",
	queries: func(head int) attentionBlock {
		v := &backwardVariants[backwardNow]
		rows := v.rowsOf(head)
		return attentionBlock{rows, 2 * rows, 1024 + max(packed(head, v.places(head)*2*64), spread(head, 2*rows)), 4 * rows}
	},
	keys: func(head int) attentionBlock {
		v := &backwardVariants[backwardNow]
		p := v.places(head)
		return attentionBlock{128, 256, 1024 + packed(head, p*2*64+2*128) + p*4*2*64, p * 4 * 64}
	},
}
