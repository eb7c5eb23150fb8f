package search

import "github.com/athanor-llm/athanor/graph"

// logitShare is the inverse of the share of the device's memory that logits may take.
const logitShare = 16

// Head returns how many of the given tokens the head processes at a time. Their logits should not dominate the
// device's memory, but the product runs well only with enough rows.
func (r *Request) Head(tokens int, memory int64) int {
	row := int64(r.Graph.LogitColumns()) * r.Graph.DType.Size()
	for tokens > 64 && int64(tokens)*row > memory/logitShare && r.fewerRows(tokens) < tokens {
		tokens = r.fewerRows(tokens)
	}
	return tokens
}

// LeastHead returns the fewest tokens that the head should process at a time: with fewer, steps have more operators than they save bytes.
func (r *Request) LeastHead(tokens int) int {
	for tokens > 32 && r.fewerRows(tokens) < tokens {
		tokens = r.fewerRows(tokens)
	}
	return tokens
}

const (
	// feedShare is the inverse of the share of the device's memory that values inside a feed-forward may take.
	feedShare = 32
	// keyShare likewise, of the keys and values that ranks exchange at a time, with their gradients.
	keyShare = 32
	// leastFeed is the number of tokens from which on a tile's products take several times as long as reading the layer's weights
	// again, and reading and writing their gradients.
	leastFeed = 4096
	// mostTiles bounds the tiles of a micro-batch: of ever smaller ones, programs would be long.
	mostTiles = 64
)

// Feed returns of how many of the given tokens the feed-forward is computed at a time, 0 for all: of long sequences, the values inside
// it should not dominate the device's memory.
func (r *Request) Feed(tokens int, memory int64) int {
	if n := r.Pins.FeedRows; n > 0 {
		return n
	}
	row, tile := r.Graph.FeedBytes(), tokens
	for tile > leastFeed && int64(tile)*row > memory/feedShare {
		fewer := r.fewerRows(tile)
		if fewer == tile || fewer < tokens/mostTiles {
			break
		}
		tile = fewer
	}
	if tile == tokens {
		return 0
	}
	return tile
}

// HeadFits reports whether the head may process that many tokens at a time.
func (r *Request) HeadFits(rows int) bool { return r.HeadUnit == 0 || rows%r.HeadUnit == 0 }

// fewerRows returns the next smaller number of rows that is a multiple or a divisor of the sequence length and at
// which the graph's and the device's sums can be cut; rows itself if there is none.
func (r *Request) fewerRows(rows int) int {
	unit := 1
	if rows > r.Graph.Seq {
		unit = r.Graph.Seq
	}
	for d := 2; d <= min(rows/unit, 64); d++ {
		next := rows / d
		if rows/unit%d == 0 && r.Graph.CutsAt(next) && r.HeadFits(next) {
			return next
		}
	}
	return rows
}

// logitsMatter reports whether logits of so many rows take enough of the device's memory for fewer to be tried: a step of
// many small heads is long to lower.
func (r *Request) logitsMatter(rows int, memory int64) bool {
	const little = 256 // of the memory
	return int64(rows)*int64(r.Graph.LogitColumns())*graph.F32.Size() > memory/little
}
