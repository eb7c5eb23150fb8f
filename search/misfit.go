package search

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/plan"
)

// ErrDoesNotFit reports that no plan fits. The error is a *Misfit.
var ErrDoesNotFit = errors.New("does not fit")

// ErrBatch reports that the batch cannot be divided among the ranks.
var ErrBatch = errors.New("the batch cannot be divided")

// ErrPins reports that no plan satisfies the user's decisions.
var ErrPins = errors.New("weights, grads and state cannot be in these tiers together; hint: use device or host for weights and grads, and a tier at least as far from the device for state; with state on disk, weights may be on the host only if grads are, too; or leave `plan` out")

// ErrPipeline reports that no pipeline with the user's decisions exists or fits.
var ErrPipeline = errors.New("no pipeline with these decisions fits; hint: use more stages or ranks, smaller micro-batches or more memory, or leave some decisions of `plan` out")

// Misfit is the error when nothing fits: which tier is short, by how much, and what
// would help.
type Misfit struct {
	Frugal *Candidate // the minimum-memory plan
	Only   bool       // it is the only plan that was considered
	Tier   device.Tier
	Need   int64
	Have   int64
	Hint   string
}

func (e *Misfit) Error() string {
	if e.Only {
		return fmt.Sprintf("%s does not fit: it needs %s of %v memory, but only %s are available; hint: %s, and another plan may need less", e.Frugal.Label, size.Exact(e.Need), e.Tier, size.Exact(e.Have), e.Hint)
	}
	state := ""
	if pl := e.Frugal.Plan; pl != nil && pl.State != plan.FP32State {
		state = fmt.Sprintf(", with optimizer_state %s,", pl.State)
	}
	return fmt.Sprintf("the model does not fit: the most frugal plan tried%s needs %s of %v memory, but only %s are available; hint: %s", state, size.Exact(e.Need), e.Tier, size.Exact(e.Have), e.Hint)
}

func (e *Misfit) Is(target error) bool { return target == ErrDoesNotFit }

// Limit returns the configuration override that gives each rank that many bytes of a tier: exactly or, from a gigabyte on, in
// whole megabytes, rounded up.
func Limit(t device.Tier, bytes int64, ranks int) string {
	if t != device.DeviceTier { // the limit is for all ranks together
		bytes *= int64(ranks)
	}
	const mb, gb = 1_000_000, 1_000_000_000
	if bytes >= gb {
		return fmt.Sprintf("limits.%v=%sGB", t, strconv.FormatFloat(float64((bytes+mb-1)/mb)/1e3, 'f', -1, 64))
	}
	return fmt.Sprintf("limits.%v=%d", t, bytes)
}

// NewMisfit describes the tier that a candidate exceeds most.
func NewMisfit(c *Candidate) *Misfit {
	e := &Misfit{Frugal: c}
	var enough []string
	need := c.Needs()
	for t, have := range c.Program.Capacity {
		if need[t] > have {
			enough = append(enough, Limit(device.Tier(t), need[t], c.Plan.Ranks))
		}
		if need[t]-have > e.Need-e.Have {
			e.Tier, e.Need, e.Have = device.Tier(t), need[t], have
		}
	}
	e.Hint = "it fits with " + strings.Join(enough, " ")
	return e
}
