package link

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
)

// HeaderLen is the number of bytes that a call between ranks begins with on each pipe. They
// say what the call is, so that device.Agree can compare both ends, and that its rank has
// arrived.
const HeaderLen = 8 * (4 + 2*operandWords)

const operandWords = 6

// Header returns the header of a call of a group or of the two ends of a message.
func Header(c *device.Call, members []int) []byte {
	acc := 0
	if c.Attr.Acc {
		acc = 1
	}
	words := []int64{int64(c.Op), int64(acc), int64(c.Tag), group(members)}
	for i := range 2 {
		var o device.Operand
		if i < len(c.Args) {
			o = c.Args[i]
		}
		words = append(words, int64(o.Tier), int64(o.DType), o.Addr, int64(o.Rows), int64(o.Cols), int64(o.Stride))
	}
	var b []byte
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, uint64(w))
	}
	return b
}

// group is a hash of ranks.
func group(members []int) int64 {
	h := fnv.New64a()
	fmt.Fprint(h, members)
	return int64(h.Sum64())
}

// Meeting is what the headers of calls that may meet have in common.
type Meeting struct {
	Message    bool
	Tag, Group int64
}

// MeetingOf returns where a header's call is to be met.
func MeetingOf(header []byte) Meeting {
	word := func(i int) int64 { return int64(binary.LittleEndian.Uint64(header[8*i:])) }
	return Meeting{device.IsMessage(graph.Op(word(0))), word(2), word(3)}
}

// Meet reads the header of the call at the other end into c, whose Args must have room for
// two. Its peers stay as they are. own is the header of this end, sent for the same members.
func Meet(c *device.Call, own, other []byte) error {
	word := func(b []byte, i int) int64 { return int64(binary.LittleEndian.Uint64(b[8*i:])) }
	c.Op, c.Attr.Acc, c.Tag = graph.Op(word(other, 0)), word(other, 1) != 0, int(word(other, 2))
	if c.Op >= graph.NumOps || !c.Op.Info().Between {
		return fmt.Errorf("another host sent operator %d, which does not run between ranks", word(other, 0))
	}
	if word(own, 3) != word(other, 3) || c.Tag != int(word(own, 2)) {
		return fmt.Errorf("%s with tag %d meets a call with tag %d or of other ranks", c.Op, c.Tag, word(own, 2))
	}
	c.Args = c.Args[:2]
	for i := range c.Args {
		at := 4 + i*operandWords
		o := device.Operand{
			Tier: device.Tier(word(other, at)), DType: graph.DType(word(other, at+1)), Addr: word(other, at+2),
			Rows: int(word(other, at+3)), Cols: int(word(other, at+4)), Stride: int(word(other, at+5)),
		}
		if o.Tier != device.DeviceTier || o.DType >= graph.NumDTypes || min(o.Rows, o.Cols, o.Stride) < 0 || max(o.Rows, o.Cols, o.Stride) > 1<<40 || o.Addr < 0 || o.Addr > 1<<50 {
			return fmt.Errorf("another host sent an impossible operand, %v", o)
		}
		c.Args[i] = o
	}
	return nil
}
