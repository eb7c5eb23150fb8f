package run

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/athanor-llm/athanor/program"
)

// Before the first step all ranks must agree: on plan, model, data and seed. Each
// rank has a hash of these. If one differs, the error names it, and no rank begins.
// While all ranks are in one process, this checks the compiler; ranks in separate
// processes would exchange their hashes.

// agree checks that programs by rank belong to one plan and one run.
func agree(ps []*program.Program, run string) error {
	var hashes []string
	for _, p := range ps {
		hashes = append(hashes, pact(p.PlanHash, run))
	}
	return program.Agree(hashes)
}

// pact hashes a plan's hash and a run's identity.
func pact(plan, run string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s", plan, run))
	return hex.EncodeToString(sum[:8])
}

// ready checks that the ranks agree, and records the common hash.
func (t *Trainer) ready() error {
	id, err := json.Marshal(t.identity())
	if err != nil {
		return err
	}
	t.pact = pact(t.programs[0].PlanHash, string(id))
	return agree(t.programs, string(id))
}
