package graph_test

import (
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/samples"
	"github.com/athanor-llm/athanor/model"
)

// TestStatesRefused: what is not built for layers that hand states from token to token, such as linear attention and convolutions, is
// refused with the family's name and a hint.
func TestStatesRefused(t *testing.T) {
	for _, name := range []string{"delta", "lfm2", "scan", "beside", "halves"} {
		t.Run(name, func(t *testing.T) { checkStatesRefused(t, samples.TinyModels[name]) })
	}
}

func checkStatesRefused(t *testing.T, m *model.Model) {
	for name, build := range map[string]func() error{
		"share": func() error { _, err := graph.BuildPart(m, 256, 2, graph.F32, nil); return err },
		"slabs": func() error { dense := *m; dense.Experts, dense.Active = 0, 0; return graph.CheckSlabs(&dense, 2) },
	} {
		if err := build(); err == nil || !strings.Contains(err.Error(), m.Family.Name) || !strings.Contains(err.Error(), "; hint: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	dense := *m
	dense.Experts = 0
	if err := graph.CheckParts(&dense, 256, 2, nil); err == nil || !strings.Contains(err.Error(), m.Family.Name) {
		t.Errorf("parts: %v", err)
	}
}
