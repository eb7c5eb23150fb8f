package scale

// Flow is the data-parallel traffic of one way to shard, per rank and step, for 16-bit parameters and gradients and
// ring collectives: how often a parameter is gathered and its gradient reduced, the bytes sent per parameter of the
// rank (twice that in and out), and the FLOP per byte (in and out) of the compute that can hide it.
type Flow struct {
	Mode     string  `json:"mode"`
	Gathers  int     `json:"gathers"`
	Reduces  int     `json:"reduces"`
	Bytes    float64 `json:"bytes_per_parameter"`
	Forward  float64 `json:"forward_intensity,omitempty"` // 0: no traffic in the forward pass
	Backward float64 `json:"backward_intensity"`
}

// Flows compares the ways to shard for m micro-batches of some tokens each: depth-first order gathers and reduces
// once per micro-batch, layered accumulation once per step, for any m (Lamy-Poirier 2021; Rajbhandari et al. 2020,
// ZeRO).
func Flows(m int, tokens float64) []Flow {
	n := float64(m)
	return []Flow{
		{"replicated or ZeRO-1", 1, 1, 4, 0, 0.75 * tokens},
		{"replicated, layered", 1, 1, 4, 0, 0.75 * n * tokens},
		{"ZeRO-2, depth first", 1, m, 2 * (n + 1), 0, 1.5 * tokens},
		{"ZeRO-3, depth first", 2 * m, m, 6 * n, 0.5 * tokens, 0.75 * tokens},
		{"ZeRO-3, layered", 2, 1, 6, 0.5 * n * tokens, 0.75 * n * tokens},
	}
}
