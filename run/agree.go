package run

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/athanor-llm/athanor/program"
)

// Before the first step all ranks must be about to do the same: run the same
// plan of the same model on the same data from the same seed. Each rank has a
// hash of that; one that has another is named, and nobody begins. Where all
// ranks are in one process, as now, this checks the compiler; ranks in processes
// of their own would tell each other their hashes and check them likewise.

// agree checks that programs by rank are of one plan and one run.
func agree(ps []*program.Program, run string) error {
	var hashes []string
	for _, p := range ps {
		hashes = append(hashes, pact(p.PlanHash, run))
	}
	return program.Agree(hashes)
}

// pact is the hash of a plan's hash and of a run's identity.
func pact(plan, run string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s", plan, run))
	return hex.EncodeToString(sum[:8])
}

// ready checks that the ranks agree, and keeps what they agreed on.
func (t *Trainer) ready() error {
	id, err := json.Marshal(t.identity())
	if err != nil {
		return err
	}
	t.pact = pact(t.programs[0].PlanHash, string(id))
	return agree(t.programs, string(id))
}
