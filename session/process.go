package session

import "github.com/athanor-llm/athanor/graph"

// What a process that trains has besides its arenas, by what was measured: of 13 to 24 MB that are live in a small run
// most are programs and the tokenizer; loading and saving hold a piece of a parameter in fp32, and once more where its type or
// order is changed; three pieces of a file are on their way to the disk.
const (
	processBase   = 96 << 20
	processPieces = 3 * 4 << 20
)

// ProcessBytes returns the bytes that a process takes besides its arenas to train a graph's parameters.
func ProcessBytes(g *graph.Graph) int64 {
	return processBase + processPieces + 2*4*int64(LargestPiece(g))
}
