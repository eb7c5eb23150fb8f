package search

import (
	"context"
	"fmt"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/lower"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// Block is what is generated together (FlexGen, 2303.06865): batches of sequences for all of which each layer's weights are brought once.
type Block struct {
	Context int   // tokens of a sequence
	Each    int   // sequences of a batch
	Batches int   // batches
	Reads   []int // tokens of each sequence's prompt that programs read at once, descending
	DType   graph.DType
}

// Sequences returns how many there are.
func (b *Block) Sequences() int { return b.Each * b.Batches }

// Graphs returns what batches compute: the graphs that read prompts, then that of a step, which has a token of each sequence.
func (b *Block) Graphs(m *model.Model) (list []*graph.Graph, err error) {
	if model.Remembers(m) { // programs of all slots read beginnings again, which states cannot
		return nil, fmt.Errorf("blocks of sequences are not built for %s, whose layers hand states from token to token; hint: generate without a block, or one text at a time", m.Family)
	}
	shapes := []graph.Generation{{Rows: b.Each}}
	for i := len(b.Reads) - 1; i >= 0; i-- {
		shapes = append([]graph.Generation{{Rows: b.Reads[i], Reads: true}}, shapes...)
	}
	for _, n := range shapes {
		n.Context, n.Slots = b.Context, b.Each
		g, err := n.Build(m, b.DType)
		if err != nil {
			return nil, err
		}
		list = append(list, g)
	}
	return list, nil
}

// LowerBlock lowers the graphs of a block to programs that share weights and caches, as a plan of the step says, whose batches are the
// block's. Each is of all sequences, layer by layer. With opt.Reject, the list ends with a program that does not fit.
func LowerBlock(ctx context.Context, graphs []*graph.Graph, pl *plan.Plan, opt lower.Options) (list []*program.Program, err error) {
	if len(pl.Batches) == 0 {
		return nil, fmt.Errorf("the plan of a block has no batches; hint: list them")
	}
	opt.Mode = lower.Decode
	for _, g := range graphs {
		p, err := lower.Lower(ctx, g, planOf(pl, g), opt)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
		if opt.Reject && !p.Fits() {
			return list, nil
		}
		if opt.Base == nil {
			opt.Base = p
		}
	}
	return list, nil
}

// planOf makes a plan of a step of generation one for another graph of the same sequences.
func planOf(pl *plan.Plan, g *graph.Graph) *plan.Plan {
	own := *pl
	if own.SequenceLength, own.HeadRows = g.Seq, g.Seq; g.Last {
		own.HeadRows = 1
	}
	if n := len(pl.Batches); n > 0 {
		own.MicroBatches = n
		if g.Logits < 0 { // prompts are read sequence by sequence
			own.MicroBatches = n * g.Slots
		}
		own.Group = own.MicroBatches
	}
	return &own
}
