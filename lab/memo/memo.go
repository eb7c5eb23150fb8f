// Package memo decides which activations of a long sequence stay on the GPU, which are swapped to the host and which
// are recomputed, token by token. It has the policy of MEMO (2407.12117; SIGMOD 2025) and one that is never slower.
//
// The paper. A layer's skeletal activations are those that its forward pass writes and its backward pass reads: for a
// GPT 16 units of tokens*width elements. Layers alternate between two slots. While the next layer computes, a layer's
// activations are copied to the host, and they are copied back before its backward pass. The layer's input and the
// output of attention are always swapped: everything else can be recomputed from the input, and attention is the
// costly part. Of the other 14 units a fraction alpha of the token rows is swapped, the rest is dropped and
// recomputed, so that compute hides the copies and the host's memory suffices. Alpha is one number for the whole job,
// from a linear program with a closed form (Alpha).
//
// Ours. Best generalises alpha: per layer and class of tensors, rows are kept in the device's remaining memory,
// swapped or recomputed. The whole step, with its three streams, deadlines, slots, device and host memory, is one
// linear program over these fractions, solved for every number of slots. MEMO's policy, full swapping and full
// recomputation are feasible points, so the optimum is never slower, and the dual solution proves it.
//
//	w, _ := memo.Of(g)             // g: the graph of a 7B GPT at 1M tokens
//	m := memo.A800(0.6, 0)
//	for _, a := range memo.Arms() {
//		r, _ := a.Run(m, m.Costs(w))
//		fmt.Println(a.Name, r.MFU) // memo-paper 0.597, ours 0.599
//	}
//
// # Assumptions of the machine
//
// One GPU of a tensor- and sequence-parallel group does 1/8 of everything and holds 1/8 of every activation.
//   - A layer's forward pass takes its FLOPs / (efficiency * peak), its backward pass twice that. Efficiency is per
//     model FLOP: it includes the fifth product of FlashAttention's backward pass and, unless a rate between GPUs is
//     given, the communication of tensor parallelism. The paper gives one number that relates it to the link: at 192K
//     tokens a forward pass just hides a swapped layer, which implies a link of 20.3 GB/s times the efficiency: at
//     0.6, 12.2 GB/s each way per GPU.
//   - With a rate between GPUs, a forward pass has two all-reduces of 2 bytes*tokens*width, a backward pass two,
//     recomputing the matrix products of a layer one and a half; none overlaps. The link then follows from the same
//     crossing.
//   - Copies out and in each have their own stream and the full rate, and do not slow compute.
//   - Recomputing norms and activation functions takes the time of their bytes at memory bandwidth; matrix products
//     take that of their FLOPs. The last product of a layer is never recomputed: nothing reads it. Attention
//     recomputes ranges of its first queries, which see few keys.
//   - Weights, gradients and Adam take 16 bytes per parameter, none of them offloaded. Head and loss are computed in
//     chunks of tokens. Statistics of norms and attention (0.1 % of a layer) stay on the device and are not counted
//     in the units, as in the paper. Rows are divisible.
//   - Without a plan of the memory, a caching allocator reserves 12 % more than is allocated (the paper: 76.5 for
//     68.2 GB). Its reorganisations cost time too, which is not modelled, so the plan's gain in speed does not show
//     here.
//
// Known weakness: a layer is copied as a whole in each direction, so its backward pass starts only when all of its
// rows have arrived.
package memo

// Alpha is MEMO's linear program in closed form: the largest share of the other tensors' rows that can be swapped so that
// a layer's copy hides behind the forward of the next one and the host holds all layers but the last two:
//
//	max alpha:  input + attention + alpha*others <= bandwidth*window,  <= host/(layers-2),  0 <= alpha <= 1
//
// Sizes are bytes of one layer on one GPU, host is bytes per GPU, bandwidth bytes/s, window seconds. In the result,
// Link and Host are the two bounds before clamping to [0, 1]. Stall is how long each forward pass waits, in seconds,
// because even input and attention are not hidden; Short is how many bytes of host memory they lack.
func Alpha(input, attention, others, bandwidth, window, host float64, layers int) Share {
	always := input + attention
	swapped := float64(max(layers-2, 0))
	s := Share{
		Link:  (bandwidth*window - always) / others,
		Host:  1, // no layer is swapped
		Stall: max(0, always/bandwidth-window),
		Short: max(0, swapped*always-host),
	}
	if swapped > 0 {
		s.Host = (host/swapped - always) / others
	}
	s.Alpha = min(max(min(s.Link, s.Host), 0), 1)
	return s
}

// Share is the solution of Alpha.
type Share struct {
	Alpha float64 `json:"alpha"`
	Link  float64 `json:"link_bound"`
	Host  float64 `json:"host_bound"`
	Stall float64 `json:"stall_seconds"`
	Short float64 `json:"host_bytes_short"`
}

// SampleFLOPs returns the model FLOPs of one training sample of a causal transformer, the numerator of MEMO's MFU: 6
// per parameter and token, and 6 n h s^2 for attention (half of the pairs, backward twice the forward).
func SampleFLOPs(layers, width, tokens, parameters float64) float64 {
	return 6*tokens*parameters + 6*layers*width*tokens*tokens
}

// MFU returns the fraction of the GPUs' peak, in FLOP/s, that a sample's model FLOPs use.
func MFU(flops, seconds, peak float64) float64 { return flops / (seconds * peak) }
