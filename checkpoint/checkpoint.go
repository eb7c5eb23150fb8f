// Package checkpoint saves a training run so that it can be continued exactly, even after a crash during a save.
//
// A checkpoint is a folder, and also a Hugging Face model that loads anywhere:
//
//	runs/first/
//	  checkpoint-200/
//	    config.json, tokenizer.json, ...       as given by the caller
//	    model.safetensors                      or shards and their index
//	    state/m.safetensors, v.safetensors     groups of tensors under the model's names: optimizer moments,
//	    state/master.safetensors               fp32 weights if the model's are narrower, ...
//	    trainer_state.json                     step, data cursor, random generator, losses, plan
//	    manifest.json                          size and checksum of every file above
//	    DONE                                   step and checksum of the manifest
//	  .tmp-checkpoint-300/                     being written, or left by a crash; the next save removes it
//
// Approach: under a temporary name, write and sync the files, then the manifest, then DONE, then their directories. One
// rename, the commit point, gives the folder its name; then sync the parent directory. Only then remove older
// checkpoints, first by a rename to a temporary name, so that no half-removed folder ever has a valid name. Readers
// trust a folder by a chain of checksums: DONE vouches for the manifest, the manifest for every file. Latest returns
// the newest folder whose chain holds and reports why it skipped newer ones.
//
// Example: power fails while step 300 is saved with Keep 2. Latest finds checkpoint-200; the next save removes the
// remains of 300.
//
// Tensors are passed lazily (safetensors.Tensor) and read by range, so the model is never in memory twice. They are written
// while the next ones are read (writer.go).
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
	// ErrCorrupt is wrapped by every error caused by the content of a checkpoint.
	ErrCorrupt = safetensors.ErrCorrupt
	// ErrNone means that a run folder holds no whole checkpoint.
	ErrNone = errors.New("no complete checkpoint")
	// ErrExists means that a whole checkpoint of the same step, with other state, exists.
	ErrExists = errors.New("a different checkpoint of this step exists")
)

const (
	weightsBase  = "model"
	adapterBase  = "adapter_model" // as PEFT calls it
	stateDir     = "state"
	trainerFile  = "trainer_state.json"
	manifestFile = "manifest.json"
	doneFile     = "DONE"

	namePrefix = "checkpoint-"
	tempPrefix = ".tmp-" // also of folders that are being removed

	maxJSON = 64 << 20 // size limit of manifest.json and trainer_state.json, in bytes
)

// Trainer is the state of a run besides its tensors. The raw values are opaque here.
type Trainer struct {
	Step   int64           `json:"step"`   // optimizer steps done
	Tokens int64           `json:"tokens"` // tokens seen
	Cursor json.RawMessage `json:"data_cursor,omitempty"`
	Losses []float64       `json:"losses,omitempty"` // of the last steps, the newest last
	Plan   json.RawMessage `json:"plan,omitempty"`   // the inputs of the plan; resuming under another plan is not an error
	Best   *Best           `json:"best,omitempty"`   // nil: none is kept
}

// Best is the step with the lowest validation loss so far, whose checkpoint is not removed.
type Best struct {
	Step int64   `json:"step"`
	Loss float64 `json:"validation_loss"` // nats per token
}

// Group is a set of tensors of one kind, saved as state/Name.safetensors. Each has the name of the weight it belongs to.
type Group struct {
	Name    string
	Tensors []safetensors.Tensor
}

// Snapshot is the content of one checkpoint.
type Snapshot struct {
	Trainer Trainer
	Weights []safetensors.Tensor
	Adapter bool // the weights are those of an adapter: they are in adapter_model.safetensors
	State   []Group
	// Divided says that other processes write parts of the tensors, see safetensors.Divided.
	Divided bool
	// Files are written unchanged at the top: config.json, tokenizer.json, ... (see ModelFiles).
	Files map[string][]byte
}

// Bytes returns the size of all tensors: the size on disk except for a little JSON.
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

// check rejects snapshots that could not be read back.
func (s *Snapshot) check() error {
	if s.Trainer.Step < 0 {
		return fmt.Errorf("step %d is negative", s.Trainer.Step)
	}
	for _, loss := range s.Trainer.Losses {
		if math.IsNaN(loss) || math.IsInf(loss, 0) {
			return fmt.Errorf("one of the last losses is %v\nhint: the run has diverged and is not worth saving; resume from the last checkpoint", loss)
		}
	}
	seen := map[string]bool{}
	for _, g := range s.State {
		if !plainName(g.Name) || seen[g.Name] {
			return fmt.Errorf("%.80q is not a valid name of a state group, or two groups have it", g.Name)
		}
		seen[g.Name] = true
	}
	for name := range s.Files {
		ours := name == stateDir || name == trainerFile || name == manifestFile || name == doneFile ||
			strings.HasSuffix(name, ".safetensors") || strings.HasSuffix(name, ".safetensors.index.json")
		if !plainName(name) || ours {
			return fmt.Errorf("%.80q cannot be the name of a file next to the weights", name)
		}
	}
	return nil
}

// plainName reports whether a name is one path element, printable and not hidden.
func plainName(name string) bool {
	return name != "" && len(name) < 200 && name[0] != '.' &&
		!strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r == '\\' || r == ':' || r < ' ' || r == 0xfffd })
}

// Folder returns the name of the folder of a step's checkpoint.
func Folder(step int64) string { return namePrefix + strconv.FormatInt(step, 10) }

// stepOf is the inverse of Folder; it accepts only the exact names that Folder returns.
func stepOf(name string) (int64, bool) {
	digits, ok := strings.CutPrefix(name, namePrefix)
	step, err := strconv.ParseInt(digits, 10, 64)
	return step, ok && err == nil && step >= 0 && Folder(step) == name
}
