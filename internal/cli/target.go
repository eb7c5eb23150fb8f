package cli

import (
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/job"
)

// Target is the arguments of most verbs: a configuration and overrides.
type Target struct {
	Config    string   `arg:"" help:"YAML file that describes the run; plan, simulate and draw also take a model's name or folder, or the folder of a run, whose plan they show." placeholder:"CONFIG"`
	Overrides []string `arg:"" optional:"" help:"Overrides: key=value, with dots for nested keys; athanor keys lists all." placeholder:"KEY=VALUE"`
}

// Load reads the configuration for a purpose, and settles what it leaves open.
func (t *Target) Load(c *Context, to config.Purpose) (*job.Spec, error) {
	return t.LoadLaunched(c, to, config.Launched{})
}

// LoadLaunched is Load for the first of several processes that a launcher has started.
func (t *Target) LoadLaunched(c *Context, to config.Purpose, l config.Launched) (*job.Spec, error) {
	cfg, err := config.LoadTo(to, t.Config, t.Overrides)
	if err == nil {
		err = cfg.Launch(l)
	}
	if err != nil {
		return nil, err
	}
	return job.Settle(to, cfg, c.Note)
}
