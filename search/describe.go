package search

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/optimizer"
	"github.com/athanor-llm/athanor/plan"
	"github.com/athanor-llm/athanor/program"
)

// describePipeline describes what each rank of a pipeline holds, a line each; ""
// for other plans.
func describePipeline(c *Candidate) string {
	p := c.Plan.Pipeline
	if p == nil {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "pipeline: %s on %d ranks, %d stages, %d micro-batches", p.Schedule, p.Ranks, len(p.Stages), c.Plan.MicroBatches)
	if p.Slices > 1 {
		fmt.Fprintf(&b, " in %d slices", p.Slices)
	}
	if n := c.Plan.Replicas() / c.Plan.PerSequence(); n > 1 {
		fmt.Fprintf(&b, ", %d replicas with different sequences", n)
	}
	fmt.Fprintf(&b, "; ranks do not compute in %.1f %% of the step\n", 100*c.Idle())
	fmt.Fprintf(&b, "stages begin with segments %v (0 is the embedding, then the layers)\n", p.Stages)
	for r, prog := range c.Programs {
		first, last, layers := 1<<30, -1, map[int]bool{}
		for i := range prog.Instrs {
			in := &prog.Instrs[i]
			if in.Stream == device.Compute && in.Key.Segment >= 0 {
				first, last = min(first, in.Key.Segment), max(last, in.Key.Segment)
				layers[in.Key.Segment] = true
			}
		}
		fmt.Fprintf(&b, "  rank %d: %d segments of %d to %d, %s\n", r, len(layers), first, last, describeMessages(prog))
	}
	return b.String()
}

// describeSharing describes which tokens ranks have that share sequences, a line for each of the first group; "" for
// other plans.
func describeSharing(c *Candidate) string {
	n, sharers := c.Plan.Parts(), c.Plan.Sharers()
	if n == 1 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "sequences: %d ranks share each", n)
	if sharers > 1 {
		fmt.Fprintf(&b, ", each with the %d ranks that have its matrices", sharers)
	}
	if groups := c.Plan.Ranks / c.Plan.PerSequence(); groups > 1 && c.Plan.Pipeline == nil {
		fmt.Fprintf(&b, "; %d groups of ranks have different sequences", groups)
	}
	b.WriteString("\n")
	for r, prog := range c.Programs {
		if r%sharers != 0 {
			continue
		}
		var runs []string
		for _, run := range prog.Runs {
			runs = append(runs, fmt.Sprintf("%d to %d", run.At, run.End()-1))
		}
		sends := describeMessages(prog)
		if c.Plan.Exchange == plan.ExchangeHeads {
			sends = describeCrossings(prog)
		}
		fmt.Fprintf(&b, "  rank %d: tokens %s, %s\n", r, strings.Join(runs, " and "), sends)
	}
	return b.String()
}

// describeCrossings says how much a rank that exchanges heads gets of others.
func describeCrossings(p *program.Program) string {
	var bytes int64
	for i := range p.Instrs {
		if p.Instrs[i].Op == graph.AllToAll {
			call := p.Call(i)
			bytes += device.Received(&call, p.Rank)
		}
	}
	return fmt.Sprintf("%s of device memory, exchanges heads, %s in total", size.Format(p.Height[device.DeviceTier]), size.Format(bytes))
}

// describeSums describes what ranks that share matrices add up; "" for other plans.
func describeSums(c *Candidate) string {
	n := c.Plan.Sharers()
	if n == 1 {
		return ""
	}
	var sums int
	var bytes int64
	for i := range c.Program.Instrs {
		if in := &c.Program.Instrs[i]; in.Op == graph.AllReduce && c.Program.Buffers[in.Args[0].Buf].RowUnit > 0 {
			sums++
			bytes += c.Program.Operand(in.Args[graph.AllReduceX]).Bytes()
		}
	}
	text := fmt.Sprintf("matrices: %d ranks share each, and add up %d results of %s in total", n, sums, size.Format(bytes))
	if groups := c.Plan.Ranks / c.Plan.PerSequence(); groups > 1 && c.Plan.Pipeline == nil && c.Plan.Parts() == 1 {
		text += fmt.Sprintf("; %d groups of ranks have different sequences", groups)
	}
	return text + "\n"
}

// describeZeros says of which chunks no zeros are stored; "" for plans that store all.
func describeZeros(c *Candidate) string {
	var stored, all int64 // of the first rank
	for _, h := range c.Program.Homes {
		if h.Of > 0 && h.Kind == optimizer.Weights && !h.Replica {
			stored, all = stored+int64(h.Region.Cols), all+int64(h.Of)
		}
	}
	n := 0
	for _, ch := range c.Plan.Chunks {
		if ch.Compact {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("zeros: %d of %d chunks do without, and store %d of %d weights, which the device expands before it uses them\n", n, len(c.Plan.Chunks), stored, all)
}

// exchange is what ranks do together, by how many they are: 1 for messages, which are between two.
type exchange struct {
	between bool // ranks of several hosts
	members int
}

// DescribeHosts says how many ranks exchange what within a host and between hosts, with the most bytes that one of them receives in
// a step; "" for one host.
func DescribeHosts(c *Candidate, host func(rank int) int) string {
	ranks, most := map[int]int{}, map[exchange]int64{}
	for r := range c.Plan.Ranks {
		ranks[host(r)]++
	}
	if len(ranks) == 1 {
		return ""
	}
	for _, p := range c.Programs {
		for k, n := range receives(p, host) {
			most[k] = max(most[k], n)
		}
	}
	kinds := slices.SortedFunc(maps.Keys(most), func(a, b exchange) int { return cmp.Compare(most[b], most[a]) })
	var list [2][]string
	for _, k := range kinds {
		what, level := fmt.Sprintf("collectives of %d ranks", k.members), 0
		if k.members == 1 {
			what = "messages"
		}
		if k.between {
			level = 1
		}
		list[level] = append(list[level], fmt.Sprintf("%s (%s a rank)", what, size.Format(most[k])))
	}
	text := fmt.Sprintf("hosts: %d of %d ranks", len(ranks), ranks[0])
	if counts := slices.Sorted(maps.Values(ranks)); counts[0] < counts[len(counts)-1] {
		text = fmt.Sprintf("hosts: %d, of %d to %d ranks", len(ranks), counts[0], counts[len(counts)-1])
	}
	for level, words := range []string{"within a host", "between hosts"} {
		if list[level] != nil {
			text += fmt.Sprintf("; %s: %s", words, strings.Join(list[level], ", "))
		}
	}
	return text + "\n"
}

// receives returns the bytes that a rank receives in a step.
func receives(p *program.Program, host func(rank int) int) map[exchange]int64 {
	received := map[exchange]int64{}
	for i := range p.Instrs {
		if !p.Instrs[i].Op.Info().Between {
			continue
		}
		call := p.Call(i)
		k := exchange{members: len(call.Peers)}
		for _, r := range call.Peers {
			k.between = k.between || host(r) != host(p.Rank)
		}
		if n := device.Received(&call, p.Rank); n > 0 {
			received[k] += n
		}
	}
	return received
}

// describeMessages says how much device memory a rank needs, and what it sends.
func describeMessages(p *program.Program) string {
	var messages int
	var bytes int64
	for i := range p.Instrs {
		if in := &p.Instrs[i]; in.Op == graph.Send {
			messages++
			bytes += p.Operand(in.Args[graph.SendSrc]).Bytes()
		}
	}
	return fmt.Sprintf("%s of device memory, sends %d messages of %s in total", size.Format(p.Height[device.DeviceTier]), messages, size.Format(bytes))
}
