package search

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/plan"
)

// mostDifferences bounds the differences reported; the others usually follow from
// them.
const mostDifferences = 3

// Difference describes how plan is differs from plan was, for the same model and
// batch, larger decisions first.
func Difference(g *graph.Graph, was, is *plan.Plan) string {
	if was.Hash() == is.Hash() {
		return "the same plan"
	}
	var list []string
	say := func(differs bool, format string, args ...any) {
		if differs && len(list) < mostDifferences {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	sayMore := func(what string, n int, where string) { say(n != 0, "%s", more(what, n, where)) }
	say(piped(was) != piped(is), "%s instead of %s", piped(is), piped(was))
	say(was.MicroBatch != is.MicroBatch, "micro-batches of %d instead of %d", is.MicroBatch, was.MicroBatch)
	say(was.MicroBatch == is.MicroBatch && was.Group != is.Group, "%d micro-batches layer by layer instead of %d", is.Group, was.Group)
	say(divided(was) != divided(is), "%s instead of %s", divided(is), divided(was))
	if sameLayout(was, is) {
		sayMore("chunk", resident(is)-resident(was), "on the device")
	} else if d := residing(g, is) - residing(g, was); d != 0 {
		say(true, "%s %s of parameters and their state on the device", size.Format(max(d, -d)), moreOrLess(d))
	}
	sayMore("chunk", streams(is)-streams(was), "streamed through the device for updates")
	say(was.Defer != is.Defer, "updates %s", map[bool]string{true: "deferred", false: "not deferred"}[is.Defer])
	before, after := treated(was), treated(is)
	for i, words := range []string{"keeping all activations", "recomputing activations", "swapping activations"} {
		sayMore("layer", after[i]-before[i], words)
	}
	say(was.Cache != is.Cache, "%s of cache for weights instead of %s", size.Format(is.Cache), size.Format(was.Cache))
	say(was.Prefetch != is.Prefetch, "weights sent %d units ahead instead of %d", is.Prefetch, was.Prefetch)
	say(was.HeadRows != is.HeadRows, "logits of %d tokens at a time instead of %d", is.HeadRows, was.HeadRows)
	say(was.FeedRows != is.FeedRows, "feed-forwards of %s tokens at a time instead of %s", tokensOr(is.FeedRows), tokensOr(was.FeedRows))
	if len(list) == 0 {
		return "different places for some parameters or activations"
	}
	return strings.Join(list, ", ")
}

// more returns, for example, "2 more chunks on the device".
func more(what string, n int, where string) string {
	if n != 1 && n != -1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s %s %s", max(n, -n), moreOrLess(int64(n)), what, where)
}

func moreOrLess(n int64) string {
	if n < 0 {
		return "fewer"
	}
	return "more"
}

// piped describes how the ranks work together.
func piped(pl *plan.Plan) string {
	if pl.Pipeline == nil {
		return "no pipeline"
	}
	return fmt.Sprintf("%s on %d ranks", pl.Pipeline.Schedule, pl.Pipeline.Ranks)
}

// divided names what ranks shard of most chunks.
func divided(pl *plan.Plan) string {
	count := map[string]int{}
	most := ""
	for _, c := range pl.Chunks {
		if count[c.Shard]++; count[c.Shard] > count[most] {
			most = c.Shard
		}
	}
	if most == "" {
		return "nothing sharded"
	}
	return most + " sharded"
}

// sameLayout reports whether the plans cut parameters into the same chunks.
func sameLayout(a, b *plan.Plan) bool {
	return slices.EqualFunc(a.Chunks, b.Chunks, func(x, y plan.Chunk) bool { return x.First == y.First && x.Last == y.Last })
}

// resident counts the chunks whose weights, gradients and state stay on the device.
func resident(pl *plan.Plan) (n int) {
	for _, c := range pl.Chunks {
		if c.Weights == device.DeviceTier && c.Grads == device.DeviceTier && c.State == device.DeviceTier {
			n++
		}
	}
	return n
}

// streams counts the chunks whose state is streamed to the device for updates.
func streams(pl *plan.Plan) (n int) {
	for _, c := range pl.Chunks {
		if c.Update == plan.UpdateOnDevice {
			n++
		}
	}
	return n
}

// residing returns the bytes of weights, gradients and optimizer state placed on
// the device, over all ranks.
func residing(g *graph.Graph, pl *plan.Plan) (bytes int64) {
	for _, c := range pl.Chunks {
		each := int64(0) // bytes per element
		dtype := g.Stored(c.First).DType
		for _, part := range []struct {
			tier device.Tier
			size int64
		}{{c.Weights, dtype.Size()}, {c.Grads, 4}, {c.State, plan.StateBytes(pl.Optimizer, pl.State, dtype)}} {
			if part.tier == device.DeviceTier {
				each += part.size
			}
			if g.Params[c.First].Frozen {
				break // it has weights only
			}
		}
		bytes += each * elements(g, c)
	}
	return bytes
}

// treated counts the layers that keep all activations, recompute some, or swap
// some.
func treated(pl *plan.Plan) (n [3]int) {
	for _, r := range pl.Activations {
		swaps := slices.ContainsFunc(r[:], plan.Fate.Swapped)
		switch {
		case r == plan.Recomputed("none"):
			n[0]++
		case !swaps:
			n[1]++
		default:
			n[2]++
		}
	}
	return n
}

// tokensOr is a number of tokens, or "all" for 0.
func tokensOr(n int) string {
	if n == 0 {
		return "all"
	}
	return strconv.Itoa(n)
}
