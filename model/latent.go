package model

import "fmt"

// Latent is attention whose queries, keys and values are made from narrow latents (2405.04434, section 2.1), as in DeepSeek-V2 and
// later. A head's queries and keys have columns that rotary positions turn, which keys of all heads have in common, and columns that
// they do not turn. Files have the former last and in pairs; operators have them first, so that all of attention is as without latents.
//
//	kv      = x.down           turned | latent
//	keys    = turned | latent.up        of each head
//	values  =          latent.up        of each head
//
// The zero value: there are no latents.
type Latent struct {
	Queries, KV          int // columns of the latents of queries (0: they are made from x) and of keys and values
	Plain, Turned, Value int // columns of a head: of queries and keys, not turned and turned, and of values
}

// Some reports whether there are latents.
func (l *Latent) Some() bool { return l.KV > 0 }

// Resize returns the latents of heads of to columns, in the proportions of those of heads of from.
func (l Latent) Resize(from, to int) Latent {
	if !l.Some() {
		return l
	}
	turned := max(2, l.Turned*to/from/2*2)
	size := func(n int) int { return n * to / from }
	return Latent{Queries: size(l.Queries), KV: max(1, size(l.KV)), Plain: to - turned, Turned: turned, Value: max(1, size(l.Value))}
}

// LatentEps is the epsilon of latents' norms, whatever that of the others is.
const LatentEps = 1e-6

// check returns what is wrong with the sizes.
func (l *Latent) check(m *Model) error {
	switch {
	case *l == Latent{}:
		return nil
	case m.Family.Tensors.KVDown == "":
		return fmt.Errorf("latents of keys and values are not supported for %s; hint: use a family that has them, such as deepseek_v3", m.Family)
	case l.KV < 1 || l.KV > maxWidth || l.Queries < 0 || l.Queries > maxWidth:
		return fmt.Errorf("the latents have %d columns for keys and values and %d for queries; hint: use kv_lora_rank from 1 to %d, and q_lora_rank likewise or null", l.KV, l.Queries, maxWidth)
	case l.Plain < 1 || l.Turned < 2 || l.Turned%2 != 0 || l.Plain+l.Turned != m.HeadDim:
		return fmt.Errorf("heads of %d columns that are turned and %d that are not; hint: qk_rope_head_dim must be even, and both positive", l.Turned, l.Plain)
	case l.Value < 1 || l.Value > m.HeadDim:
		return fmt.Errorf("v_head_dim is %d where keys have %d columns; hint: it must be positive and at most that", l.Value, m.HeadDim)
	case m.KVHeads != m.Heads:
		return fmt.Errorf("%d key/value heads for %d heads, which are all made from one latent; hint: num_key_value_heads must be num_attention_heads", m.KVHeads, m.Heads)
	}
	return nil
}

// latent adds the parameters of a layer's attention, in the order in which it reads them.
func (b *paramList) latent(n TensorNames, residual float64) {
	m, l := b.m, &b.m.Latent
	if l.Queries > 0 {
		b.linear(n.QueryDown, m.Width, l.Queries, false, m.InitStd)
		b.gains(n.QueryNorm, l.Queries)
		b.turnedWeight(n.QueryUp, l.Queries, m.Heads*m.HeadDim, m.HeadDim)
	} else {
		b.turnedWeight(n.Q, m.Width, m.Heads*m.HeadDim, m.HeadDim)
	}
	b.turnedWeight(n.KVDown, m.Width, l.KV+l.Turned, l.KV+l.Turned)
	b.gains(n.KVNorm, l.KV)
	b.linear(n.KVUp, l.KV, m.Heads*(l.Plain+l.Value), false, m.InitStd)
	b.linear(n.AttnOut, m.Heads*l.Value, m.Width, false, residual)
}

// turnedWeight adds a weight of whose outputs the last of each head are turned.
func (b *paramList) turnedWeight(name string, in, out, head int) {
	first, adapters := len(b.list), len(b.adapters)
	b.linear(name, in, out, false, b.m.InitStd)
	set := func(p *Param) { p.Paired, p.Head, p.PairedLast = b.m.Latent.Turned, head, true }
	set(&b.list[first])
	if len(b.adapters) > adapters {
		set(&b.adapters[len(b.adapters)-1])
	}
}
