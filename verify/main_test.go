package verify

import (
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.CollectSeldom()
	m.Run()
}
