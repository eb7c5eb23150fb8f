package device

import (
	"fmt"
	"math"

	"github.com/athanor-llm/athanor/graph"
)

// CallError is the error of one call. Sync returns it so that an engine can name the
// failed instruction.
type CallError struct {
	Call int // number of the call
	Op   graph.Op
	Err  error
}

func (e *CallError) Error() string { return fmt.Sprintf("call %d (%s): %v", e.Call, e.Op, e.Err) }

func (e *CallError) Unwrap() error { return e.Err }

// Absent reports whether the operand is omitted.
func (o Operand) Absent() bool { return o.Rows == 0 }

// Bytes returns the bytes of the operand's elements, without gaps.
func (o Operand) Bytes() int64 { return int64(o.Rows) * int64(o.Cols) * o.DType.Size() }

// End returns the address after the operand's last byte.
func (o Operand) End() int64 {
	if o.Absent() {
		return 0
	}
	return o.Addr + (int64(o.Rows-1)*int64(o.Stride)+int64(o.Cols))*o.DType.Size()
}

// Contiguous reports whether there are no gaps between rows.
func (o Operand) Contiguous() bool { return o.Rows <= 1 || o.Stride == o.Cols }

// Dim returns the operand's type and extents, as cost formulas take them.
func (o Operand) Dim() graph.Dim {
	if o.Absent() {
		return graph.Dim{}
	}
	return graph.Dim{DType: o.DType, Rows: o.Rows, Cols: o.Cols}
}

// CheckReserve returns an error if a tier cannot have an arena of this size on a device with these
// arenas and this number of prepared calls.
func CheckReserve(tier Tier, bytes int64, arenas [NumTiers]int64, calls int) error {
	switch {
	case tier >= NumTiers:
		return fmt.Errorf("reserve: %v does not exist", tier)
	case arenas[tier] != 0:
		return fmt.Errorf("reserve: the %s tier is reserved already", tier)
	case calls > 0:
		return fmt.Errorf("reserve: it is too late for the %s tier, calls are already prepared", tier)
	case bytes < 0:
		return fmt.Errorf("reserve: impossible size of %d bytes for the %s tier", bytes, tier)
	}
	return nil
}

// Check validates a call against arenas of these sizes: it rejects unknown operators, operands outside their arena
// and whatever else the operator's row in graph's table does not allow. So a call that passes touches only its
// operands, provided that the numbers in index operands are in range. Every backend checks calls in Prepare, so that
// Launch need not.
func Check(c *Call, arenas [NumTiers]int64) error {
	if c.Op == graph.None || c.Op >= graph.NumOps {
		return fmt.Errorf("%v is not an operator", c.Op)
	}
	if c.Stream >= NumStreams {
		return fmt.Errorf("%v does not exist", c.Stream)
	}
	specs := c.Op.Info().Args
	if len(c.Args) > len(specs) {
		return fmt.Errorf("%d operands are given, but the operator takes at most %d", len(c.Args), len(specs))
	}
	dims := make([]graph.Dim, len(specs))
	for i, s := range specs {
		if i >= len(c.Args) || c.Args[i].Absent() {
			if !s.Optional {
				return fmt.Errorf("operand %s is missing", s.Name)
			}
			continue
		}
		dims[i] = c.Args[i].Dim()
		if err := c.Args[i].check(arenas); err != nil {
			return fmt.Errorf("operand %s: %w", s.Name, err)
		}
		if c.Args[i].Tier == DiskTier && c.Op != graph.Copy {
			return fmt.Errorf("operand %s is on the disk tier, where only copy can reach it", s.Name)
		}
	}
	if c.Attr.Among > 1 {
		return fmt.Errorf("attention over the tokens of %d ranks can be planned and simulated, but not run", c.Attr.Among)
	}
	if c.Op == graph.Copy {
		return checkCopy(c.Args[graph.CopyDst], c.Args[graph.CopySrc])
	}
	if c.Op.Info().Between {
		return CheckBetween(c)
	}
	switch m := c.Op.Check(&c.Attr, dims); {
	case m == nil:
		return nil
	case m.Arg >= 0:
		return fmt.Errorf("operand %s %w", specs[m.Arg].Name, m)
	default:
		return m
	}
}

func (o Operand) check(arenas [NumTiers]int64) error {
	if o.Tier >= NumTiers {
		return fmt.Errorf("%v does not exist", o.Tier)
	}
	if o.DType >= graph.NumDTypes {
		return fmt.Errorf("%v does not exist", o.DType)
	}
	size := o.DType.Size()
	limit := math.MaxInt64 / size / 2
	switch {
	case o.Rows < 0 || o.Cols < 1 || o.Rows > 1 && o.Stride < o.Cols:
		return fmt.Errorf("%d x %d elements with stride %d are not a matrix", o.Rows, o.Cols, o.Stride)
	case int64(o.Cols) > limit || o.Rows > 1 && int64(o.Stride) > (limit-int64(o.Cols))/int64(o.Rows-1):
		return fmt.Errorf("%d x %d elements with stride %d are too large", o.Rows, o.Cols, o.Stride)
	case o.Addr < 0 || o.Addr%size != 0:
		return fmt.Errorf("address %d is negative or not aligned to %d bytes", o.Addr, size)
	case o.Addr > arenas[o.Tier] || o.End()-o.Addr > arenas[o.Tier]-o.Addr:
		return fmt.Errorf("bytes %d to %d are outside of the %s arena of %d bytes", o.Addr, o.End(), o.Tier, arenas[o.Tier])
	}
	return nil
}

// checkCopy: copies move bytes, so extents must match row by row, or in total if
// neither side has gaps.
func checkCopy(dst, src Operand) error {
	rows := dst.Rows == src.Rows && int64(dst.Cols)*dst.DType.Size() == int64(src.Cols)*src.DType.Size()
	flat := dst.Contiguous() && src.Contiguous() && dst.Bytes() == src.Bytes()
	if !rows && !flat {
		return fmt.Errorf("cannot copy %d x %d %s to %d x %d %s", src.Rows, src.Cols, src.DType, dst.Rows, dst.Cols, dst.DType)
	}
	if dst.Tier == DiskTier && src.Tier == DiskTier {
		return fmt.Errorf("cannot copy from the disk tier to the disk tier; hint: go through the host tier")
	}
	if dst.Tier == src.Tier && dst.Addr < src.End() && src.Addr < dst.End() && dst != src {
		if dst.Contiguous() || src.Contiguous() || dst.Stride != src.Stride {
			return fmt.Errorf("source %d to %d and destination %d to %d overlap", src.Addr, src.End(), dst.Addr, dst.End())
		}
	}
	return nil
}
