// Package kernel computes the operators of package graph on the CPU.
//
// Every operator has two functions of one signature, side by side in one
// file. Reference says what is meant, in plain loops with float64 inside, for
// any strides and any mix of f32 and bf16 operands. Fast does the same with
// matrix products from package gemm, vector functions from package simd and
// all workers of a pool; Reference is its test.
//
// # Laws
//
// The planner cuts work into pieces, and whatever it chooses must not change
// a bit of the result. (Nor do AVX2 and AVX-512; but the portable fallback has
// other roundings.)
//
//   - No result depends on the number of workers.
//   - A RowWise operator gives a row the same bits in whatever range of rows
//     it is computed.
//   - A sum over tokens is one chain in ascending order that begins at the
//     accumulator (Attr.Acc) or at 0. It is therefore cut by columns among
//     workers, never by rows, and splitting the tokens over several calls
//     changes nothing.
//   - Attention works per sequence and key head, and the order of each sum
//     depends on the position in the sequence only: a query's sums go over keys,
//     ascending, in whatever slice of the sequence it is. Those of a key go over
//     blocks of graph.SliceUnit queries, the last block first, so slices in
//     descending order continue them.
//
// # Storage
//
// Arithmetic is float32. Sums and norms read and write bf16 as they go; they are
// written once for both types (bodyOf). Operators of many steps, and mixtures
// of types, widen parts of rows into a worker's buffers, work there and narrow
// on the way out: the buffers stay in the first-level cache, so this costs much
// less than the memory traffic that bf16 saves. The bits are the same.
//
// A large result goes to memory past the caches (Env.pastBytes). What is written
// through them is read first, which makes y = f(x) three transfers instead of two.
package kernel

import "github.com/athanor-llm/athanor/graph"

// Func computes one call of an operator. t has one entry for each operand in
// the operator's row of the graph table; an absent optional operand is the
// zero Tensor. Extents must agree and indices (tokens, targets) must be in
// range: who builds the call has checked them. The slice t is not kept.
type Func func(e *Env, a *graph.Attr, t []Tensor)

// Kernel is the implementation of one operator.
type Kernel struct {
	Reference, Fast Func
}

var table = [graph.NumOps]Kernel{
	graph.Linear:       {linearRef, linear},
	graph.LinearDX:     {linearDXRef, linearDX},
	graph.LinearDW:     {linearDWRef, linearDW},
	graph.BiasGrad:     {biasGradRef, biasGrad},
	graph.LayerNorm:    {layerNormRef, layerNorm},
	graph.LayerNormDX:  {layerNormDXRef, layerNormDX},
	graph.LayerNormDW:  {layerNormDWRef, layerNormDW},
	graph.RMSNorm:      {rmsNormRef, rmsNorm},
	graph.RMSNormDX:    {rmsNormDXRef, rmsNormDX},
	graph.RMSNormDW:    {rmsNormDWRef, rmsNormDW},
	graph.RoPE:         {ropeRef, rope},
	graph.Attention:    {attentionRef, attention},
	graph.AttentionBwd: {attentionBwdRef, attentionBwd},
	graph.Act:          {actRef, act},
	graph.ActBwd:       {actBwdRef, actBwd},
	graph.SwiGLU:       {swigluRef, swiglu},
	graph.SwiGLUBwd:    {swigluBwdRef, swigluBwd},
	graph.Embed:        {embedRef, embed},
	graph.EmbedBwd:     {embedBwdRef, embedBwd},
	graph.PosBwd:       {posBwdRef, posBwd},
	graph.CrossEntropy: {crossEntropyRef, crossEntropy},
	graph.LossSum:      {lossSum, lossSum},
	graph.NormPart:     {normPartRef, normPart},
	graph.NormAll:      {normAll, normAll},
	graph.AdamW:        {adamwRef, adamw},
	graph.Cast:         {castRef, cast},
	graph.Add:          {addRef, add},
	graph.EmbedAt:      {embedAtRef, embedAt},
	graph.RoPEAt:       {ropeAtRef, ropeAt},
	graph.AttentionAt:  {attentionAtRef, attentionAt},
}

// Lookup returns the operator's implementation. Copy and None have none:
// moving bytes between tiers is the device's work.
func Lookup(op graph.Op) Kernel { return table[op] }
