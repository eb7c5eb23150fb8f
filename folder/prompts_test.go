package folder

import (
	"context"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/athanor-llm/athanor/data"
	"github.com/athanor-llm/athanor/internal/torch"
)

// TestGiven: the loss is the mean over the tokens that are not given, by PyTorch's
// logits, and given tokens have no gradient of their own: in a text in which all tokens but
// one are given, gradients are those of that token's loss alone.
func TestGiven(t *testing.T) {
	ctx := context.Background()
	for _, name := range []string{"gpt2-tiny", "llama-tiny"} {
		dir := filepath.Join("../testdata/torch", name)
		f, err := Open(dir)
		check(t, err)
		defer f.Close()
		var rows [][]int32
		torch.JSON(t, filepath.Join(dir, "tokens.json"), &rows)
		logits := torch.Tensor(t, dir, "expected.safetensors", "logits")
		seq, vocab := len(rows[0])-1, f.Model.Vocab
		r := rand.New(rand.NewPCG(8, 8))
		var want float64
		learnt := 0
		for i, row := range rows {
			for k, target := range row[1:] {
				if r.IntN(3) > 0 {
					row[k+1] = data.Mark(target)
					continue
				}
				learnt++
				line := logits[(i*seq+k)*vocab:][:vocab]
				var z float64
				for _, v := range line {
					z += math.Exp(v)
				}
				want += math.Log(z) - line[target]
			}
		}
		e, err := Evaluate(ctx, f, rows, false, true)
		check(t, err)
		if want /= float64(learnt); e.Tokens != learnt || math.Abs(e.Loss/want-1) > 1e-6 {
			t.Errorf("%s: loss %v of %d tokens, by PyTorch's logits %v of %d", name, e.Loss, e.Tokens, want, learnt)
		}

		// The gradient of the mean is the mean of the gradients of single tokens.
		sums := make([][]float64, len(e.Grads))
		for i := range rows {
			for k := 1; k <= seq; k++ {
				if data.Given(rows[i][k]) {
					continue
				}
				one := make([]int32, seq+1)
				for j, token := range rows[i] {
					if one[j] = data.Mark(data.ID(token)); j == k {
						one[j] = token
					}
				}
				single, err := Evaluate(ctx, f, [][]int32{one}, false, true)
				check(t, err)
				for g, grad := range single.Grads {
					if sums[g] == nil {
						sums[g] = make([]float64, len(grad.Values))
					}
					for j, v := range grad.Values {
						sums[g][j] += float64(v) / float64(learnt)
					}
				}
			}
			if i == 0 { // enough: the others as they are
				for j := range rows[0] {
					rows[0][j] = data.Mark(data.ID(rows[0][j]))
				}
				rest, err := Evaluate(ctx, f, rows, false, true)
				check(t, err)
				for g, grad := range rest.Grads {
					for j, v := range grad.Values {
						sums[g][j] += float64(v) * float64(rest.Tokens) / float64(learnt)
					}
				}
				break
			}
		}
		for g, grad := range e.Grads {
			got := torch.Widened(grad.Values)
			if d := torch.Distance(got, sums[g]); d > 1e-4*torch.Norm(sums[g])+1e-7 {
				t.Errorf("%s: gradient of %s is off by %v of %v", name, grad.Name, d, torch.Norm(sums[g]))
			}
		}
	}
}
