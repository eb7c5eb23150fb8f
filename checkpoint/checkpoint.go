// Package checkpoint saves a training run so that it can be continued exactly, whatever happens while it is saved.
//
// A checkpoint is a folder, and also a Hugging Face model that loads anywhere:
//
//	runs/first/
//	  checkpoint-200/
//	    config.json, tokenizer.json, ...       as the caller gives them
//	    model.safetensors                      or shards and their index
//	    state/m.safetensors, v.safetensors     groups of tensors under the model's names: optimizer moments, ...
//	    state/master.safetensors               ... and fp32 weights where the model's are narrower
//	    trainer_state.json                     step, data cursor, random generator, losses, plan
//	    manifest.json                          size and checksum of every file above
//	    DONE                                   step and checksum of the manifest
//	  .tmp-checkpoint-300/                     being written, or left by a crash; the next save removes it
//
// Approach: the files, then the manifest, then DONE are written and synced under a temporary name, then their directories;
// then one rename, the only moment that counts, gives the folder its name, and the parent directory is synced. Only then
// older checkpoints are removed, first by a rename to a temporary name, so that no half-removed folder ever has a good
// name. Whoever reads trusts a folder because of a chain: DONE vouches for the manifest, the manifest for every file.
// Latest takes the newest folder whose chain holds and says why it passed over the others.
//
// Example: power fails while step 300 is saved with Keep 2. Latest finds checkpoint-200; the next save removes what was
// left of 300.
//
// Tensors are handed over lazily (safetensors.Tensor) and read by range, so the model is never in memory twice.
//
// Known weakness: nothing locks a run folder against a second process; the checksum (CRC-32C) finds damage, not malice.
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
)

var (
	// ErrCorrupt is wrapped by every error that the content of a checkpoint causes.
	ErrCorrupt = safetensors.ErrCorrupt
	// ErrNone says that a run folder holds no whole checkpoint.
	ErrNone = errors.New("no whole checkpoint")
	// ErrExists says that another whole checkpoint of the same step is in the way.
	ErrExists = errors.New("a different checkpoint of this step exists")
)

const (
	weightsBase  = "model"
	stateDir     = "state"
	trainerFile  = "trainer_state.json"
	manifestFile = "manifest.json"
	doneFile     = "DONE"

	namePrefix = "checkpoint-"
	tempPrefix = ".tmp-" // also of folders that are being removed

	maxJSON = 64 << 20 // bytes of manifest.json and trainer_state.json that are still believed
)

// Trainer is what continues a run besides tensors. The raw values are the caller's own.
type Trainer struct {
	Step   int64           `json:"step"`   // optimizer steps done
	Tokens int64           `json:"tokens"` // tokens seen
	Cursor json.RawMessage `json:"data_cursor,omitempty"`
	Losses []float64       `json:"losses,omitempty"` // of the last steps, the newest last
	Plan   json.RawMessage `json:"plan,omitempty"`   // what the plan was made of; resuming under another one is no error
}

// Group is tensors of one kind, saved as state/Name.safetensors. Tensors are named like the weights that they belong to.
type Group struct {
	Name    string
	Tensors []safetensors.Tensor
}

// Snapshot is what one save writes.
type Snapshot struct {
	Trainer Trainer
	Weights []safetensors.Tensor
	State   []Group
	// Files are written at the top as they are: config.json, tokenizer.json, ... (see ModelFiles).
	Files map[string][]byte
}

// Bytes returns the size of all tensors, which is the size on disk but for a little JSON.
func (s *Snapshot) Bytes() int64 {
	sum := int64(0)
	for _, t := range s.Weights {
		sum += t.Bytes()
	}
	for _, g := range s.State {
		for _, t := range g.Tensors {
			sum += t.Bytes()
		}
	}
	return sum
}

// check refuses what could not be read again.
func (s *Snapshot) check() error {
	if s.Trainer.Step < 0 {
		return fmt.Errorf("step %d is negative", s.Trainer.Step)
	}
	for _, loss := range s.Trainer.Losses {
		if math.IsNaN(loss) || math.IsInf(loss, 0) {
			return fmt.Errorf("a loss is %v\nhint: a run that diverged is not worth saving; resume from the last checkpoint", loss)
		}
	}
	seen := map[string]bool{}
	for _, g := range s.State {
		if !plainName(g.Name) || seen[g.Name] {
			return fmt.Errorf("%.80q is not the name of a state group, or there are two", g.Name)
		}
		seen[g.Name] = true
	}
	for name := range s.Files {
		ours := name == stateDir || name == trainerFile || name == manifestFile || name == doneFile ||
			strings.HasSuffix(name, ".safetensors") || strings.HasSuffix(name, ".safetensors.index.json")
		if !plainName(name) || ours {
			return fmt.Errorf("%.80q cannot be the name of a file beside the weights", name)
		}
	}
	return nil
}

// plainName reports whether a name is one path element, printable and not hidden.
func plainName(name string) bool {
	return name != "" && len(name) < 200 && name[0] != '.' &&
		!strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r == '\\' || r == ':' || r < ' ' || r == 0xfffd })
}

func folderName(step int64) string { return namePrefix + strconv.FormatInt(step, 10) }

// stepOf is the way back; only the name that folderName gives counts.
func stepOf(name string) (int64, bool) {
	digits, ok := strings.CutPrefix(name, namePrefix)
	step, err := strconv.ParseInt(digits, 10, 64)
	return step, ok && err == nil && step >= 0 && folderName(step) == name
}
