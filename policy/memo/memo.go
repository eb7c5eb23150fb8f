// Package memo decides which activations of a long sequence stay on the GPU, which are swapped to the host and which are
// computed again, token by token. It is the policy of MEMO (2407.12117; SIGMOD 2025) and one that is never slower.
//
// The paper. What a layer's forward makes and its backward reads is its skeletal activations: for a GPT 16 units of
// tokens*width elements. Each layer writes them into one of two slots that take turns; while the next layer computes, they
// are copied to the host, and back before their backward. The layer's input and the output of attention are always
// swapped: from the first everything else can be made again, the second is the costly one. Of the other 14 units a share
// alpha of the token rows is swapped, the rest is dropped and made again, so that the copies hide behind the compute and
// the host's memory suffices. Alpha is one number for the whole job, from a linear program with a closed form (Alpha).
//
// Ours. Best takes alpha apart: per layer and class of tensors, rows are kept on the device, swapped or made again; what
// the device has left keeps what it can. The whole step, with its three streams, deadlines, slots, device and host memory,
// is one linear program over these shares, solved for every number of slots. It contains MEMO's policy, full swapping and
// full recomputation as points, so it is never slower, and its optimum comes with a proof, the dual solution.
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
//   - A layer's forward takes its FLOPs / (efficiency * peak), its backward twice that. Efficiency is per model FLOP: the
//     fifth product of FlashAttention's backward, and unless a rate between GPUs is given the exchanges of tensor
//     parallelism, are inside it. The paper gives one number to fix it and the link with: at 192K tokens a swapped layer
//     just hides behind a forward, which is a link of 20.3 GB/s times the efficiency. At 0.6, 12.2 GB/s each way per GPU.
//   - Given a rate between GPUs, a forward has two all-reduces of 2 bytes*tokens*width, a backward two, making the matrix
//     products of a layer again one and a half; none overlaps. The link then follows from the same crossing.
//   - Copies out and in have a stream and the full rate each, and do not slow the compute.
//   - Making norms and activation functions again costs their bytes at the bandwidth of the memory; matrix products cost
//     their FLOPs. The last product of a layer is never made again: nobody reads it. Attention's rows are made again by
//     ranges of queries, the first ones, which look back at few keys.
//   - Weights, gradients and Adam take 16 bytes per parameter, of which nothing is offloaded. Head and loss work in chunks
//     of tokens. Statistics of norms and attention (0.1 % of a layer) stay on the device and are left out of the units, as
//     in the paper. Rows are divisible.
//   - Without a plan of the memory, a caching allocator reserves 12 % more than is allocated (the paper: 76.5 for 68.2
//     GB). Its reorganisations cost time too, which is not modelled: the plan's gain in speed is not shown here.
//
// Known weakness: copies of a layer are one piece in each direction, so a backward starts when all of its rows are there.
package memo

// Alpha is MEMO's linear program in closed form: the largest share of the other tensors' rows that can be swapped so that
// a layer's copy hides behind the forward of the next one and the host holds all layers but the last two:
//
//	max alpha:  input + attention + alpha*others <= bandwidth*window,  <= host/(layers-2),  0 <= alpha <= 1
//
// Sizes in bytes of one layer on one GPU, host in bytes per GPU, bandwidth in bytes/s, window in seconds. Link and Host
// are the two bounds before they are cut to [0, 1]. Stall is what each forward waits because even input and attention do
// not hide, in seconds; Short are the bytes of host memory that they lack.
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

// SampleFLOPs are the model FLOPs of one training sample of a causal transformer, the numerator of MEMO's MFU: 6 per
// parameter and token, and 6 n h s^2 for attention (half of the pairs, backward twice the forward).
func SampleFLOPs(layers, width, tokens, parameters float64) float64 {
	return 6*tokens*parameters + 6*layers*width*tokens*tokens
}

// MFU is the share of the GPUs' peak that a sample's model FLOPs use.
func MFU(flops, seconds, peak float64) float64 { return flops / (seconds * peak) }
