package alloc_test

import (
	"context"
	"fmt"

	"github.com/athanor-llm/athanor/alloc"
)

// A result outlives the scratch that made it; the scratch of the next step
// takes its place.
func ExamplePack() {
	p := alloc.Problem{Buffers: []alloc.Buffer{
		{ID: "scratch 1", Lower: 0, Upper: 2, Size: 6, Fixed: alloc.Free},
		{ID: "result", Lower: 1, Upper: 5, Size: 4, Fixed: alloc.Free},
		{ID: "scratch 2", Lower: 2, Upper: 4, Size: 6, Fixed: alloc.Free},
	}}
	s, err := alloc.Pack(context.Background(), p, alloc.Options{})
	fmt.Println(s.Offsets, s.Height, s.Optimal, err)
	// Output: [4 0 4] 10 true <nil>
}
