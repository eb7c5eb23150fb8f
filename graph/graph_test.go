package graph

import (
	"math"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/model/family"
)

func build(t *testing.T, name string, seq int) *Graph {
	t.Helper()
	m, err := family.Known(name)
	if err != nil {
		t.Fatal(err)
	}
	m.Layers = min(m.Layers, 4)
	g, err := Build(m, seq, F32)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestCutSequences: sums may be divided between batches of that many sequences and of
// multiples of it, and of no other number; all tokens may always be processed at once.
func TestCutSequences(t *testing.T) {
	for _, dt := range []DType{F32, BF16} {
		for seq := 1; seq <= 96; seq++ {
			g := &Graph{Seq: seq, DType: dt}
			n := g.CutSequences()
			for b := 1; b <= 8; b++ {
				if g.CutsAt(b*seq) != (b%n == 0) {
					t.Fatalf("%v, sequences of %d: %d of them are cut at: %v, but the least are %d", dt, seq, b, g.CutsAt(b*seq), n)
				}
				if !g.Takes(b*seq, b*seq) || g.Takes(b*seq, 9*seq) != (b%n == 0) {
					t.Fatalf("%v, sequences of %d: %d of them at a time", dt, seq, b)
				}
			}
		}
	}
}

// TestFLOPs: forward 2 and backward 4 per weight of a matrix and token, and
// attention 4 and 10 numbers of a head per causal pair (the backward pass
// recomputes the scores), from the sizes alone.
func TestFLOPs(t *testing.T) {
	for _, name := range []string{"gpt2", "llama-3.2-1b", "mistral-7b", "qwen2-0.5b", "opt-125m", "qwen3-0.6b", "gemma-3-1b", "olmo-2-1b", "pythia-70m", "phi-3-mini", "smollm3-3b", "granite-3.0-2b", "starcoder2-3b", "stablelm-2-1.6b", "phi-2", "olmo-3-7b"} {
		g := build(t, name, 128)
		m := g.Model
		var weights int64
		for _, p := range m.Params() {
			if !p.Vector && !strings.Contains(p.Name, "embed") && !strings.Contains(p.Name, "wte") && !strings.Contains(p.Name, "wpe") && p.Name != "lm_head.weight" {
				weights += p.Elems()
			}
		}
		weights += int64(m.Vocab) * int64(m.Width) // the head, tied or not
		pairs := int64(m.Layers) * int64(m.Heads*m.HeadDim) * (128 * 129 / 2)
		f, b := g.FLOPs()
		if wantF, wantB := 2*128*weights+4*pairs, 4*128*weights+10*pairs; f != wantF || b != wantB {
			t.Errorf("%s: %d and %d FLOPs, want %d and %d", name, f, b, wantF, wantB)
		}
	}
}

// TestParts: the work of n ranks that share a sequence adds up to that of one, operator
// by operator, and each saves an n-th of the activations.
func TestParts(t *testing.T) {
	const seq = 3 * 1024
	for _, name := range []string{"llama-3.2-1b", "mistral-7b"} {
		m, err := family.Known(name)
		if err != nil {
			t.Fatal(err)
		}
		m.Layers = 2
		if m.Window > 0 {
			m.Window = 400 // more than a rank's tokens
		}
		whole, err := Build(m, seq, BF16)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{1, 2, 3, 8} {
			g, err := BuildPart(m, seq, n, BF16, nil)
			if err != nil {
				t.Fatal(err)
			}
			for s := range whole.Segments {
				for _, part := range [][2][]Node{{whole.Segments[s].Forward, g.Segments[s].Forward}, {whole.Segments[s].Backward, g.Segments[s].Backward}} {
					for i := range part[0] {
						all, one := &part[0][i], &part[1][i]
						f, share := all.Op.FLOPs(&all.Attr, whole.Dims(all, seq, nil)), one.Op.FLOPs(&one.Attr, g.Dims(one, g.Seq, nil))
						if math.Abs(float64(n)*float64(share)/float64(f)-1) > 1e-3 && f > 0 { // pairs are divided into whole ones
							t.Errorf("%s, %s: %v has %d FLOPs, %d of %d ranks", name, g.Segments[s].Name, all.Op, f, share, n)
						}
					}
				}
				for i, v := range whole.Segments[s].Saved {
					if w := g.Segments[s].Saved[i]; whole.Values[v].Cols != g.Values[w].Cols || g.Seq*n != seq {
						t.Errorf("%s: %s has %d columns, %d of %d ranks", name, whole.Values[v].Name, whole.Values[v].Cols, g.Values[w].Cols, n)
					}
				}
			}
		}
		if _, err := BuildPart(m, seq, 7, BF16, nil); err == nil || !strings.Contains(err.Error(), "hint:") {
			t.Errorf("%d tokens on 7 ranks: %v", seq, err)
		}
	}
}

// TestSliceFLOPs: the slices of a sequence, cut anywhere, have the operations
// of the whole sequence, and two sequences twice those of one; the pairs of one
// query are counted by hand.
func TestSliceFLOPs(t *testing.T) {
	for _, c := range [][2]int{{0, 0}, {1, 0}, {5, 0}, {40, 0}, {0, 6}, {4, 7}, {0, 20}, {0, 30}} {
		window, document := c[0], c[1]
		a := &Attr{Seq: 20, Window: window, Document: document, Heads: 3, KVHeads: 1, HeadDim: 4}
		flops := func(op Op, from, to int) int64 {
			q, kv := Dim{Rows: to - from, Cols: 12}, Dim{Rows: to, Cols: 8}
			if op == Attention {
				return op.FLOPs(a, []Dim{q, q, q, kv})
			}
			return op.FLOPs(a, []Dim{q, kv, q, q, q, kv, q, q})
		}
		for op, per := range map[Op]int64{Attention: 4, AttentionBwd: 10} {
			var sum int64
			for r := range a.Seq {
				seen := r + 1
				if document > 0 {
					seen = r%document + 1
				}
				if window > 0 {
					seen = min(seen, window)
				}
				one := flops(op, r, r+1)
				if want := per * int64(seen*12); one != want {
					t.Errorf("%v, window and document %v, row %d: %d operations, want %d", op, c, r, one, want)
				}
				sum += one
			}
			if whole := flops(op, 0, a.Seq); whole != sum || flops(op, 0, 2*a.Seq) != 2*sum || flops(op, 0, 7)+flops(op, 7, 20) != sum {
				t.Errorf("%v, window and document %v: whole %d, slices %d", op, c, whole, sum)
			}
		}
	}
}

// TestOperands: every node has the operands of its row of the table, and every
// parameter gets exactly one gradient for each use in the forward pass.
func TestOperands(t *testing.T) {
	for _, name := range []string{"gpt2", "llama-3.2-1b", "qwen2-0.5b", "opt-125m", "qwen3-0.6b", "gemma-3-1b", "olmo-2-1b", "pythia-70m", "phi-3-mini", "smollm3-3b", "granite-3.0-2b", "starcoder2-3b", "stablelm-2-1.6b", "phi-2", "olmo-3-7b"} {
		g := build(t, name, 64)
		uses, grads := make([]int, len(g.Params)), make([]int, len(g.Params))
		for s := range g.Segments {
			for _, nodes := range [][]Node{g.Segments[s].Forward, g.Segments[s].Backward} {
				for i := range nodes {
					n := &nodes[i]
					specs := n.Op.Info().Args
					if len(n.Args) > len(specs) {
						t.Fatalf("%s: %v has %d operands", name, n.Op, len(n.Args))
					}
					for k, spec := range specs {
						if k >= len(n.Args) || n.Args[k].Value < 0 {
							if !spec.Optional {
								t.Errorf("%s: %v lacks operand %s", name, n.Op, spec.Name)
							}
							continue
						}
						v := &g.Values[n.Args[k].Value]
						if spec.Token != v.PerToken && n.Op != Cast { // which parameters have, too
							t.Errorf("%s: %v: operand %s is %s", name, n.Op, spec.Name, v.Name)
						}
						switch {
						case v.Kind == ParamGrad:
							for i := range v.Params {
								grads[v.Param+i]++
							}
						case v.Kind == ParamValue && i < len(g.Segments[s].Forward) && &nodes[0] == &g.Segments[s].Forward[0]:
							for i := range v.Params {
								uses[v.Param+i]++
							}
						}
					}
				}
			}
		}
		for p := range g.Params {
			if uses[p] != grads[p] || uses[p] == 0 {
				t.Errorf("%s: %s is used %d times and has %d gradients", name, g.Params[p].Name, uses[p], grads[p])
			}
		}
	}
}

func TestBuildErrors(t *testing.T) {
	m, err := family.Known("gpt2")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		seq  int
		d    DType
		want string
	}{{0, F32, "sequence_length"}, {-1, F32, "sequence_length"}, {1025, F32, "learned positions"}, {16, I32, "stored"}} {
		if _, err := Build(m, tc.seq, tc.d); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("sequence %d, %v: %v", tc.seq, tc.d, err)
		}
	}
}

// TestRopeTable: position 0 does not turn, the fastest pair turns by one radian per position,
// and Llama 3's scaling leaves high frequencies alone and slows the lowest by its factor.
func TestRopeTable(t *testing.T) {
	m, err := family.Known("llama-3.2-1b")
	if err != nil {
		t.Fatal(err)
	}
	const seq = 9
	half := m.HeadDim / 2
	scaled := RopeTable(m, seq, false)
	m.RopeScaling = nil
	plain := RopeTable(m, seq, false)
	near := func(what string, got float32, want float64) {
		t.Helper()
		if math.Abs(float64(got)-want) > 1e-6 {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	for i := range half {
		near("cos 0", scaled[i], 1)
		near("sin 0", scaled[half+i], 0)
	}
	at := func(table []float32, pos, i int) float32 { return table[pos*m.HeadDim+half+i] }
	near("fastest", at(plain, 5, 0), math.Sin(5))
	near("fastest, scaled", at(scaled, 5, 0), math.Sin(5))
	slow := math.Pow(m.RopeTheta, -2*float64(half-1)/float64(m.HeadDim))
	near("slowest", at(plain, 8, half-1), math.Sin(8*slow))
	near("slowest, scaled", at(scaled, 8, half-1), math.Sin(8*slow/32))
}
