package cuda

import "math"

// relay is how blocks of kernels/wgrad_wgmma.cu divide the tiles of a gradient, or of two: they form groups, and the
// blocks of a group, one per role, share its tiles. Without a relay a block has one tile.
//
// For example, the 325 tiles of 128 x 256 of GPT-2 XL's 1600 x 6400 would take the 132 SMs of an H200 three waves.
// 66 groups of two blocks have five tiles each, one of which they share: the time of 2.5 tiles. It changes no bit.
type relay struct{ groups, roles, tiles int64 }

const (
	// mostRoles is the maximum number of blocks in a group; 1 switches relays off. Blocks of one role work on as
	// many tiles as there are groups, at the same tokens, so more roles share less in the second-level cache.
	mostRoles = 8
	// worthwhile is the fraction that a relay, or more roles, must reduce the time to.
	worthwhile = 0.97
	// leastSteps is the least number of steps, per role, of a tile that is shared: cuts are rounded to steps.
	leastSteps = 8
	// handing is the time to put a tile's sums down and take them up again, in tokens multiplied meanwhile: 8 bytes
	// per element at the 34 bytes a clock that an SM gets from the second-level cache, and twice the latency of
	// copies before the first product. Counted, not measured.
	handing = 600
)

// divide returns the fastest way for this many tiles over this many tokens, and its time per token. Tiles that run
// together on all SMs are bound by what they fetch, see waves; tiles that leave half of the SMs idle are not.
func (t target) divide(s sumTile, tiles int64, tokens int) (relay, float64) {
	way := relay{tiles, 1, 1}
	if s.down > 0 {
		return way, s.waves(tiles, t.sms)
	}
	n := int64(max(t.sms, 1))
	work, fetch := float64(s.rows*s.cols)/s.rate, float64((s.rows+s.cols)*fetching)
	busy := func(sms int64) float64 { return max(work, fetch*float64(sms)/float64(n)) } // for a tile on each of this many SMs
	time := float64(tiles/n) * busy(n)
	if tiles%n > 0 {
		time += busy(tiles % n)
	}
	for roles := int64(2); roles <= mostRoles && roles <= n && !t.apart; roles++ {
		groups := n / roles
		each := blocks(tiles, groups)
		if each <= roles || common(each, roles) > 1 || 4*groups*roles > relayBytes || int64(tokens) < 64*leastSteps*roles {
			continue
		}
		if x := float64(each)/float64(roles)*busy(n) + work*handing/float64(tokens); x < worthwhile*time {
			way, time = relay{groups, roles, each}, x
		}
	}
	return way, time
}

// common returns the greatest common divisor. If it is not 1, some cuts would fall between two tiles or, after
// rounding, right next to that, and fewer roles do the same.
func common(a, b int64) int64 {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// band returns how many tiles high a band is, see cornerOf in kernels/relay.cuh: as high as a square of as many
// tiles as are summed at a time, or more where y is too narrow for that.
func (s sumTile) band(y extent, groups int64, sms int) int64 {
	down, across := blocks(int64(y.rows), int64(s.rows)), blocks(int64(y.cols), int64(s.cols))
	together := float64(min(down*across, groups, int64(max(sms, 1))))
	high := max(math.Sqrt(together*float64(s.cols)/float64(s.rows)), together/float64(across))
	return blocks(down, max(1, int64(math.Round(float64(down)/high))))
}
