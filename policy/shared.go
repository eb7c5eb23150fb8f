package policy

import (
	"errors"
	"fmt"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/plan"
)

// Degrees says how many ranks share each sequence, how many each matrix, and how many form a pipeline.
type Degrees struct {
	Sequence int `json:"sequence"`
	Tensor   int `json:"tensor"`
	Pipeline int `json:"pipeline"`
}

// Shared is a way to plan for ranks that share sequences or matrices. Its request has the graph of one of them.
type Shared struct {
	Policy
	Degrees func(ranks int) []Degrees // those to try on one host
	decide  func(r *Request, d Degrees) (*plan.Plan, error)
}

// ErrDegrees says that there is no plan of certain degrees with certain settings.
var ErrDegrees = errors.New("impossible degrees")

// PolicyOf returns the policy for ranks that share so.
func (s *Shared) PolicyOf(d Degrees) Policy {
	p := s.Policy
	p.Plan = func(r *Request) (*plan.Plan, error) {
		pl, err := s.decide(r, d)
		if err == nil {
			err = pl.Validate(r.Graph)
		}
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrDegrees, err)
		}
		return pl, err
	}
	return p
}

// AllShared lists these ways.
func AllShared() []Shared {
	return []Shared{
		{Policy{Name: "megatron-3d"}, megatronDegrees, megatron},
		{Policy{Name: "ulysses-zero3", Partial: true}, sequenceDegrees, func(r *Request, _ Degrees) (*plan.Plan, error) { return ulysses(r) }},
	}
}

// mostTensor is the number of GPUs of a host in Megatron's experiments, beyond which it does not share matrices (2104.04473, takeaway 1).
const mostTensor = 8

// megatronDegrees are those of Megatron-LM (2104.04473): matrices are shared within a host, then there are pipelines, and what is left
// has other sequences.
func megatronDegrees(ranks int) (list []Degrees) {
	for t := 1; t <= min(ranks, mostTensor); t *= 2 {
		for p := 1; t*p <= ranks; p++ {
			if ranks%(t*p) == 0 {
				list = append(list, Degrees{1, t, p})
			}
		}
	}
	return list
}

// megatron divides the optimizer's state among ranks that have the same parameters (its distributed optimizer). Layers are dealt out evenly to
// the ranks of a pipeline, whose schedule is 1F1B.
func megatron(r *Request, d Degrees) (*plan.Plan, error) {
	shard := plan.Chunk{}
	if r.Ranks > d.Tensor*d.Pipeline {
		shard.Shard = "state"
	}
	pl, err := fixed(shard, 0)(r)
	if err != nil || d.Pipeline == 1 {
		return pl, err
	}
	pl.Pipeline = &plan.Pipeline{Schedule: "1f1b", Ranks: d.Pipeline, Slices: 1, Stages: []int{0}}
	for k := 1; k < d.Pipeline; k++ {
		pl.Pipeline.Stages = append(pl.Pipeline.Stages, 1+k*r.Graph.Model.Layers/d.Pipeline)
	}
	return pl, nil
}

// sequenceDegrees are those of DeepSpeed's recipe for long sequences (ALST, 2506.13996): as many ranks share a sequence as there are, or fewer,
// with all parameters, gradients and state divided (ZeRO-3), and offloaded as far as memory asks for it. Ranks exchange heads; where there are fewer
// key heads than ranks, which DeepSpeed repeats, keys and values travel here.
func sequenceDegrees(ranks int) (list []Degrees) {
	for n := 2; n <= ranks; n++ {
		if ranks%n == 0 {
			list = append(list, Degrees{n, 1, 1})
		}
	}
	return list
}

// ulysses exchanges all heads at once.
func ulysses(r *Request) (*plan.Plan, error) {
	pl, err := partly(fixed(offloaded, live))(r)
	if err == nil && r.Graph.Parts() > 1 && graph.ExchangesHeads(r.Graph, 1) {
		pl.Exchange = plan.ExchangeHeads
	}
	return pl, err
}
