package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/athanor-llm/athanor/checkpoint"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/internal/paths"
	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/plan"
)

// Begun is what the checkpoint of a run records that settles what a configuration leaves open.
type Begun struct {
	Precision      string           `json:"precision"`
	OptimizerState plan.StateFormat `json:"optimizer_state"` // fp32 if absent
	Begin          string           `json:"bos"`             // tokens with which texts begin; "": none
	Tied           int              `json:"tied"`            // how many consecutive layers shared parameters; 0: each had its own
	Delink         int              `json:"delink_step"`     // that losses have chosen for layers to get parameters of their own; 0: none yet
	Step           int              `json:"-"`               // that the checkpoint is of
}

// begun returns what the checkpoint that the run goes on from records. Problems of the run's folder are left for those
// who open it to report.
func (s *Spec) begun() *Begun {
	path, _, err := s.Latest(checkpoint.Disk{}, checkpoint.Sizes)
	if err != nil {
		return nil
	}
	ck, err := checkpoint.Open(checkpoint.Disk{}, path)
	if err != nil {
		return nil
	}
	defer ck.Close()
	b := new(Begun)
	if err := json.Unmarshal(ck.Trainer.Plan, b); err != nil {
		return nil
	}
	b.Step = int(ck.Trainer.Step)
	return b
}

// tie decides which layers share parameters: once each has its own, they cannot be tied again.
func (s *Spec) tie() {
	s.Tied = s.TieLayers
	switch b := s.Begun; {
	case b == nil:
	case b.Tied == 0:
		s.Tied = 0
	case s.DelinkAt > 0 && b.Step >= s.DelinkAt, s.DelinkAt == config.AutoDelink && b.Delink > 0 && b.Step >= b.Delink:
		s.Tied, s.Delinks = 0, b.Tied
	}
}

// Latest returns the checkpoint that the run goes on from, checked to the given depth, and
// notes on the damaged ones that were skipped. A new run gets checkpoint.ErrNone.
func (s *Spec) Latest(disk checkpoint.FS, depth checkpoint.Depth) (path string, passed []string, err error) {
	path, skipped, err := (&checkpoint.Store{Dir: s.Out, FS: disk}).Latest(depth)
	for _, e := range skipped {
		passed = append(passed, fmt.Sprintf("skipped a checkpoint: %v", e))
	}
	none := errors.Is(err, checkpoint.ErrNone)
	switch {
	case s.Resume != "auto" && s.Resume != "never" && (none || err == nil):
		path, err = s.beginning(path, disk, depth)
	case err == nil && s.Resume == "never":
		err = s.inTheWay(path)
	case none && len(skipped) > 0: // starting anew would overwrite what may be recoverable
		err = fmt.Errorf("no checkpoint in %s is intact:\n  %s\nhint: move these away to start from scratch, or set `out` to another folder", s.Out, strings.Join(passed, "\n  "))
	}
	return path, passed, err
}

// CheckResume refuses a folder to resume from that holds no state of a run.
func (s *Spec) CheckResume() error {
	if s.Resume == "auto" || s.Resume == "never" || paths.Exists(filepath.Join(s.Resume, "state")) {
		return nil
	}
	return s.Fault("resume", s.Resume+" is not a checkpoint of a training run; hint: use auto, never, or a folder checkpoint-N; to start from a model's weights, set model")
}

// beginning is Latest for a run whose configuration names a checkpoint. own is the
// latest in the run's folder, or "": a run that was stopped and restarted continues
// from own. An own checkpoint that this run cannot have written is refused, since
// checkpoints and metrics of two histories would mix.
func (s *Spec) beginning(own string, disk checkpoint.FS, depth checkpoint.Depth) (string, error) {
	if err := s.CheckResume(); err != nil {
		return "", err
	}
	if own == "" || sameFile(own, s.Resume) {
		_, err := checkpoint.Check(disk, s.Resume, depth)
		return s.Resume, suggest.Add(err, "copy the checkpoint again, or resume from another one")
	}
	first, err := checkpoint.Check(checkpoint.Disk{}, s.Resume, checkpoint.Sizes)
	if err != nil {
		return "", err
	}
	reached, err := checkpoint.Check(checkpoint.Disk{}, own, checkpoint.Sizes)
	if err == nil && (reached < first || sameFile(filepath.Dir(s.Resume), s.Out)) {
		err = s.inTheWay(own)
	}
	return own, err
}

// inTheWay returns the error for a checkpoint in the run's folder that the run must
// not resume from.
func (s *Spec) inTheWay(path string) error {
	return s.Fault("resume", fmt.Sprintf("%s, but %s already holds %s; hint: set `out` to another folder, or resume to auto", s.Resume, s.Out, path))
}

func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	y, second := os.Stat(b)
	return err == nil && second == nil && os.SameFile(x, y)
}
