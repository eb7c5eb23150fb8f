package advise

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// TestFitLaw: fitted to noisy losses of a known law, the model that the fit would choose is as good as the best to within 0.002 nats,
// though exponents are off by several percent; and predictions beyond the points are right.
func TestFitLaw(t *testing.T) {
	truth := Law{E: 1.8172, A: 482.01, Alpha: 0.3478, B: 2085.43, Beta: 0.3658} // Besiroglu et al., 2404.10102
	r := rand.New(rand.NewPCG(testkit.Seed(t), 1))
	for range testkit.Count(2, 6, 200) {
		var points []Point
		for n := 1e7; n < 2e9; n *= 2.5 {
			for d := 2e8; d < 4e10; d *= 2.5 {
				points = append(points, Point{n, d, truth.Loss(n, d) * (1 + 0.003*r.NormFloat64())})
			}
		}
		law, err := FitLaw(points)
		if err != nil {
			t.Fatal(err)
		}
		const flops = 1e20
		best := func(l Law) (n float64) {
			least := math.Inf(1)
			for at := 1e7; at < 1e11; at *= 1.01 {
				if loss := l.Loss(at, flops/6/at); loss < least {
					n, least = at, loss
				}
			}
			return n
		}
		ours, theirs := best(law), best(truth)
		if regret := truth.Loss(ours, flops/6/ours) - truth.Loss(theirs, flops/6/theirs); regret > 0.002 {
			t.Errorf("%+v chooses %.3g parameters, %.3g are best: regret %.4f", law, ours, theirs, regret)
		}
	}
}

// TestOptimum: the closed form of the best size, G*(C/6)^(b/(a+b)), is where the law is least.
func TestOptimum(t *testing.T) {
	for _, c := range []struct {
		law             Law
		flops, params   float64
		tokens, reached float64
	}{
		{Law{1.69, 406.4, 0.34, 410.7, 0.28}, 1e20, 6.449e8, 2.585e10, 2.5998},
		{Law{1.8172, 482.01, 0.3478, 2085.43, 0.3658}, 1e20, 8.535e8, 1.953e10, 2.5534},
	} {
		if got := c.law.Loss(c.params, c.tokens); math.Abs(got-c.reached) > 1e-4 {
			t.Errorf("loss %v, want %v", got, c.reached)
		}
		for _, off := range []float64{0.9, 1.1} {
			if c.law.Loss(c.params*off, c.flops/6/(c.params*off)) < c.reached {
				t.Errorf("%v times as many parameters are better", off)
			}
		}
	}
}

// TestFitLawOfFew: exact points of a law with usual exponents are recovered from six runs, and no term is negative whatever the points.
func TestFitLawOfFew(t *testing.T) {
	truth := Law{E: 0.8, A: 40, Alpha: usualOfSize, B: 45, Beta: usualOfText}
	var points []Point
	for _, n := range []float64{3e5, 1e6, 3e6} {
		for _, d := range []float64{2e5, 6e5} {
			points = append(points, Point{n, d, truth.Loss(n, d)})
		}
	}
	law, err := FitLaw(points)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := law.Loss(1e6, 2e7), truth.Loss(1e6, 2e7); math.Abs(got/want-1) > 0.01 {
		t.Errorf("predicts %v, want %v", got, want)
	}
	r := rand.New(rand.NewPCG(testkit.Seed(t), 2))
	for range 50 {
		for i := range points {
			points[i].Loss = 0.5 + 5*r.Float64()
		}
		if law, err := FitLaw(points); err != nil || law.E < 0 || law.A < 0 || law.B < 0 {
			t.Fatalf("%+v: %+v, %v", points, law, err)
		}
	}
}

func TestFitLawRefuses(t *testing.T) {
	for _, points := range [][]Point{nil, {{1, 1, 1}, {1, 1, 1}}, {{1, 1, 1}, {2, 2, math.NaN()}, {3, 3, 3}}, {{1, 1, 1}, {2, 2, math.Inf(1)}, {3, 3, 3}}} {
		if law, err := FitLaw(points); err == nil {
			t.Errorf("%v: %+v", points, law)
		}
	}
}

// TestWorth: new text counts in full, a second reading nearly, and endless ones as repeats times the text.
func TestWorth(t *testing.T) {
	for _, c := range [][3]float64{{50, 100, 50}, {100, 100, 100}, {200, 100, 195.2}, {1e9, 100, 100 * (1 + repeats)}} {
		if got := Worth(c[0], c[1]); math.Abs(got-c[2]) > 0.1 {
			t.Errorf("%v of %v: %v, want %v", c[0], c[1], got, c[2])
		}
	}
}

// TestMeasured: from the pilots of a real advice for ten minutes, of which those count that have learnt something, the law predicts to
// three percent what real runs of ten minutes reached, and the one that it chooses is within two percent of the best.
func TestMeasured(t *testing.T) {
	const unique, entropy = 1247702, 6.1033
	text, err := os.ReadFile("testdata/quickstart.txt")
	if err != nil {
		t.Fatal(err)
	}
	var points, runs []Point
	for line := range strings.Lines(string(text)) {
		var kind string
		var p Point
		if _, err := fmt.Sscan(line, &kind, &p.Params, &p.Tokens, &p.Loss); err != nil && line[0] != '#' {
			t.Fatalf("%q: %v", line, err)
		}
		p.Tokens = Worth(p.Tokens, unique)
		switch {
		case kind == "run":
			runs = append(runs, p)
		case kind == "pilot" && p.Loss < learnt*entropy:
			points = append(points, p)
		}
	}
	law, err := FitLaw(points)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range runs {
		if got := law.Loss(r.Params, r.Tokens); math.Abs(got/r.Loss-1) > 0.03 {
			t.Errorf("%.3g parameters: predicted %.4f, reached %.4f; %+v", r.Params, got, r.Loss, law)
		}
	}
	best := slices.MinFunc(runs, func(x, y Point) int { return cmp.Compare(law.Loss(x.Params, x.Tokens), law.Loss(y.Params, y.Tokens)) })
	least := slices.MinFunc(runs, func(x, y Point) int { return cmp.Compare(x.Loss, y.Loss) })
	if best.Loss > 1.02*least.Loss {
		t.Errorf("the law chooses %.3g parameters, which reached %.4f, and %.4f was reached", best.Params, best.Loss, least.Loss)
	}
}
