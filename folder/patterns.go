package folder

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/athanor-llm/athanor/model"
)

// PEFT's rank_pattern and alpha_pattern give some modules a rank and an alpha of their own: keys are regular expressions for the end of
// a module's name, after a dot or from its beginning on.

// own returns the ranks and alphas of those of the adapted weights that have their own.
func (c *adapterConfig) own(weights []string) (map[string]model.RankAlpha, error) {
	if len(c.Ranks)+len(c.Alphas) == 0 {
		return nil, nil
	}
	own := map[string]model.RankAlpha{}
	for _, w := range weights {
		module := strings.TrimSuffix(w, ".weight")
		rank, someRank, err := valueFor(c.Ranks, "rank_pattern", module)
		if err != nil {
			return nil, err
		}
		alpha, someAlpha, err := valueFor(c.Alphas, "alpha_pattern", module)
		if err != nil {
			return nil, err
		}
		if !someRank {
			rank = c.Rank
		}
		if !someAlpha {
			alpha = c.Alpha
		}
		if of := (model.RankAlpha{Rank: rank, Alpha: alpha}); of != (model.RankAlpha{Rank: c.Rank, Alpha: c.Alpha}) {
			own[w] = of
		}
	}
	return own, nil
}

// valueFor returns the value of the pattern that a module's name matches. ok is false if there is none.
func valueFor[T int | float64](patterns map[string]T, key, module string) (value T, ok bool, err error) {
	for pattern, v := range patterns {
		r, err := regexp.Compile(`^(.*\.)?(` + pattern + `)$`)
		switch {
		case err != nil:
			return value, false, fmt.Errorf("%s: %q: %w; hint: use names of modules, such as q_proj", key, pattern, err)
		case !r.MatchString(module):
		case ok && v != value:
			return value, false, fmt.Errorf("%s has two patterns that match %s, with the values %v and %v; hint: write patterns of which one matches each module", key, module, value, v)
		default:
			value, ok = v, true
		}
	}
	return value, ok, nil
}

// ownPatterns returns the patterns of a model's adapters, by whole names.
func ownPatterns(m *model.Model) (ranks map[string]int, alphas map[string]float64) {
	for w, of := range m.LoRA.Own {
		if ranks == nil {
			ranks, alphas = map[string]int{}, map[string]float64{}
		}
		module := strings.TrimSuffix(w, ".weight")
		ranks[module], alphas[module] = of.Rank, of.Alpha
	}
	return ranks, alphas
}
