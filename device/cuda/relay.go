package cuda

import "math"

// relay is how blocks of kernels/wgrad_wgmma.cu divide the tiles of a gradient: in groups of so many
// blocks, its roles, and so many tiles each. Without a relay a block has one tile.
//
// For example, the 325 tiles of 128 x 256 of GPT-2 XL's 1600 x 6400 would take the 132 SMs of an H200 three waves. 66
// groups of two blocks have five tiles each, of which they share one: the time of 2.5 tiles. It changes no bit.
type relay struct{ groups, roles, tiles int64 }

const (
	// mostRoles is the most blocks of a group; 1 switches relays off. Each has as many tiles at a time
	// at the same tokens as there are groups, so more roles have less in common in the second-level cache.
	mostRoles = 8
	// leastSteps is the least steps of a tile that is shared: cuts are rounded to steps.
	leastSteps = 8
	// handing is the time to put a tile's sums down and take them up again, in tokens multiplied
	// meanwhile: 8 bytes per element at the 34 bytes a clock that an SM has of the second-level cache,
	// and twice the latency of copies before the first product. Counted, not measured.
	handing = 600
)

// divide returns the fastest way for so many tiles over so many tokens, and its time per token.
func (s sumTile) divide(tiles int64, sms, tokens int) (relay, float64) {
	way := relay{tiles, 1, 1}
	if s.down > 0 {
		return way, s.waves(tiles, sms)
	}
	n := int64(max(sms, 1))
	full, rest := float64(tiles/n), float64(tiles%n)
	work, fetch := float64(s.rows*s.cols)/s.rate, float64((s.rows+s.cols)*fetching)
	time := full * max(work, fetch)
	if rest > 0 {
		time += max(work, fetch*rest/float64(n))
	}
	for roles := int64(2); roles <= min(mostRoles, n); roles++ {
		groups := n / roles
		each := blocks(tiles, groups)
		if each <= roles || 4*groups*roles > relayBytes || int64(tokens) < 64*leastSteps*roles {
			continue
		}
		if t := float64(each)/float64(roles)*max(work, fetch*float64(groups*roles)/float64(n)) + work*handing/float64(tokens); each%roles != 0 && t < 0.99*time {
			way, time = relay{groups, roles, each}, t
		}
	}
	return way, time
}

// band returns how many tiles high a band is, see cornerOf in kernels/relay.cuh: as high as a square of
// as many tiles as are summed at a time, or more where y is too narrow for so many.
func (s sumTile) band(down, across, groups int64, sms int) int64 {
	together := float64(min(down*across, groups, int64(max(sms, 1))))
	high := max(math.Sqrt(together*float64(s.cols)/float64(s.rows)), together/float64(across))
	return blocks(down, max(1, int64(math.Round(float64(down)/high))))
}
