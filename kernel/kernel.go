// Package kernel computes the operators of package graph on the CPU.
//
// Every operator has two functions of one signature, in one file. Reference defines
// the result, in plain loops with float64 arithmetic, for any strides and any mix
// of f32 and bf16 operands. Fast computes the same with package gemm, package simd
// and all workers of a pool; it is tested against Reference.
//
// # Laws
//
// The planner divides work, and no division may change a bit of the result. (AVX2,
// AVX-512 and NEON agree bit for bit; the portable fallback rounds differently.)
//
//   - No result depends on the number of workers.
//   - A RowWise operator computes the same bits for a row in any range of rows.
//   - A sum over tokens is one chain in ascending order that begins at the
//     accumulator (Attr.Acc) or at 0. Workers therefore divide its columns, never
//     its rows, and splitting the tokens over several calls changes nothing.
//   - In attention, the order of each sum depends on positions in the sequence
//     only. A query's sums go over keys, ascending, in any slice of the sequence. A
//     key's sums go over blocks of graph.SliceUnit queries, last block first, so
//     slices in descending order continue them.
//
// # Storage
//
// Arithmetic is float32. Sums and norms read and write bf16 directly, with one
// generic body for both types (bodyOf). Operators of several steps, and mixed
// types, widen parts of rows into a worker's buffers, compute there and narrow the
// results. The buffers stay in the L1 cache, so this costs much less than the
// memory traffic that bf16 saves. Both ways give the same bits.
//
// Stores of large results bypass the caches (Env.pastBytes). A cached store reads
// the line first, which makes y = f(x) three transfers instead of two.
package kernel

import "github.com/athanor-llm/athanor/graph"

// Func computes one call of an operator. t has one entry for each operand in the
// operator's row of the graph table; an absent optional operand is the zero Tensor.
// Extents must agree and indices (tokens, targets) must be in range: the caller has
// checked them. Func does not keep t.
type Func func(e *Env, a *graph.Attr, t []Tensor)

// Kernel is the implementation of one operator.
type Kernel struct {
	Reference, Fast Func
}

var table = withUpdates([graph.NumOps]Kernel{
	graph.Linear:       {linearRef, linear},
	graph.LinearDX:     {linearDXRef, linearDX},
	graph.LinearDW:     {linearDWRef, linearDW},
	graph.BiasGrad:     {biasGradRef, biasGrad},
	graph.Direction:    {directionRef, direction},
	graph.Gain:         {gainRef, applyGain},
	graph.GainGrad:     {gainGradRef, gainGrad},
	graph.LayerNorm:    {layerNormRef, layerNorm},
	graph.LayerNormDX:  {layerNormDXRef, layerNormDX},
	graph.LayerNormDW:  {layerNormDWRef, layerNormDW},
	graph.RMSNorm:      {rmsNormRef, rmsNorm},
	graph.RMSNormDX:    {rmsNormDXRef, rmsNormDX},
	graph.RMSNormDW:    {rmsNormDWRef, rmsNormDW},
	graph.RoPE:         {ropeRef, rope},
	graph.Attention:    {attentionRef, attention},
	graph.AttentionBwd: {attentionBwdRef, attentionBwd},
	graph.SinkGrad:     {sinkGradRef, sinkGrad},
	graph.Act:          {actRef, act},
	graph.ActBwd:       {actBwdRef, actBwd},
	graph.XIELU:        {xieluRef, xielu},
	graph.XIELUBwd:     {xieluBwdRef, xieluBwd},
	graph.SwiGLU:       {swigluRef, swiglu},
	graph.SwiGLUBwd:    {swigluBwdRef, swigluBwd},
	graph.Gate:         {gateRef, gate},
	graph.Drop:         {dropRef, drop},
	graph.Jitter:       {jitterRef, jitter},
	graph.LatentKV:     {latentKVRef, latentKV},
	graph.LatentKVBwd:  {latentKVBwdRef, latentKVBwd},
	graph.HeadCols:     {headColsRef, headCols},
	graph.GateBwd:      {gateBwdRef, gateBwd},
	graph.ShortConv:    {shortConvRef, shortConv},
	graph.ShortConvDX:  {shortConvDXRef, shortConvDX},
	graph.ShortConvDW:  {shortConvDWRef, shortConvDW},
	graph.Decay:        {decayRef, decay},
	graph.DecayBwd:     {decayBwdRef, decayBwd},
	graph.DecayGrad:    {decayGradRef, decayGrad},
	graph.DeltaRule:    {deltaRuleRef, deltaRule},
	graph.DeltaRuleBwd: {deltaRuleBwdRef, deltaRuleBwd},
	graph.TimeSteps:    {timeStepsRef, timeSteps},
	graph.TimeStepsBwd: {timeStepsBwdRef, timeStepsBwd},
	graph.StateScan:    {stateScanRef, stateScan},
	graph.StateScanBwd: {stateScanBwdRef, stateScanBwd},
	graph.Route:        {routeRef, route},
	graph.RouteBwd:     {routeBwdRef, routeBwd},
	graph.ExpertLinear: {expertLinearRef, expertLinear},
	graph.ExpertDW:     {expertDWRef, expertDW},
	graph.ExpertDB:     {expertDBRef, expertDB},
	graph.Combine:      {combineRef, combine},
	graph.Embed:        {embedRef, embed},
	graph.EmbedBwd:     {embedBwdRef, embedBwd},
	graph.PosBwd:       {posBwdRef, posBwd},
	graph.LossPart:     {lossPartRef, lossPart},
	graph.CrossEntropy: {crossEntropyRef, crossEntropy},
	graph.Distil:       {distilRef, distil},
	graph.TopLogs:      {topLogsRef, topLogs},
	graph.Preference:   {preference, preference},
	graph.LossSum:      {lossSum, lossSum},
	graph.NormPart:     {normPartRef, normPart},
	graph.NormAll:      {normAll, normAll},
	graph.Muon:         {muonRef, muon},
	graph.Cast:         {castRef, cast},
	graph.Add:          {addRef, add},
	graph.Scale:        {scaleRef, scale},
	graph.Compress:     {compressRef, compress},
	graph.Expand:       {expandRef, expand},
	graph.SoftCap:      {softCapRef, softCap},
	graph.EmbedAt:      {embedAtRef, embedAt},
	graph.RoPEAt:       {ropeAtRef, ropeAt},
	graph.AttentionAt:  {attentionAtRef, attentionAt},
	graph.ShortConvAt:  {shortConvAtRef, shortConvAt},
	graph.DeltaRuleAt:  {deltaRuleAtRef, deltaRuleAt},
	graph.StateScanAt:  {stateScanAtRef, stateScanAt},
})

// Operators that share code have the operands that it reads at the same positions. Where they do not, this
// index is not 0 and does not compile.
var _ = [1]bool{}[graph.LayerNormDXDX^graph.RMSNormDXDX|graph.LayerNormDXDY^graph.RMSNormDXDY|graph.LayerNormDXX^graph.RMSNormDXX|
	graph.EmbedX^graph.EmbedAtX|graph.EmbedTokens^graph.EmbedAtTokens|graph.EmbedWTE^graph.EmbedAtWTE|graph.EmbedWPE^graph.EmbedAtWPE|
	graph.RoPEQKV^graph.RoPEAtQKV|graph.RoPETable^graph.RoPEAtTable|graph.ExpertLinearExperts^graph.ExpertDWExperts|
	graph.LinearDWDW2-(graph.LinearDWDY+1)]

// Lookup returns the operator's implementation, or the zero Kernel for Copy and
// None: the device moves bytes between tiers.
func Lookup(op graph.Op) Kernel { return table[op] }
