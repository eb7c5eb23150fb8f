package program

import (
	"math"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/internal/testkit"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/optimizer"
)

// generator draws programs that make no sense but have every kind of value in
// every field.
type generator struct{ *rand.Rand }

func (g generator) size() int64 {
	return g.Int64() >> (13 + g.IntN(50)) // all orders of magnitude below 2^50
}

func (g generator) name() string {
	const bytes = "abcXYZ019._:/+-' ,()[]#@%=\"\\\n\x00\xff"
	b := make([]byte, g.IntN(12))
	for i := range b {
		b[i] = bytes[g.IntN(len(bytes))]
	}
	return string(b)
}

func (g generator) float() float64 {
	for {
		if x := math.Float64frombits(g.Uint64()); !math.IsNaN(x) && !math.IsInf(x, 0) {
			return x
		}
	}
}

func (g generator) buffer() Buffer {
	b := Buffer{
		Name: g.name(), Tier: device.Tier(g.IntN(int(device.NumTiers))), Class: Class(g.IntN(int(NumClasses))),
		DType: graph.DType(g.IntN(4)), Rows: 1 + g.IntN(1<<20), Cols: 1 + g.IntN(1<<20),
		Size: g.size(), Align: g.size(), Addr: g.size() - 1, Persistent: g.IntN(2) == 0,
	}
	if g.IntN(2) == 0 {
		b.RowUnit = 1 + g.IntN(100)
	}
	for range g.IntN(4) {
		b.Cuts = append(b.Cuts, 1+g.IntN(1<<20))
		b.Init = append(b.Init, g.name())
	}
	return b
}

func (g generator) region(p *Program) Region {
	if g.IntN(5) == 0 {
		return Region{}
	}
	r := Region{Buf: g.IntN(len(p.Buffers))}
	b := &p.Buffers[r.Buf]
	if g.IntN(3) == 0 {
		return p.BufferRegion(r.Buf)
	}
	r.Off, r.Rows, r.Cols, r.Stride = g.IntN(1<<30), 1+g.IntN(1<<15), 1+g.IntN(1<<15), g.IntN(1<<15)
	switch g.IntN(4) {
	case 0:
		r.Off = 0
	case 1:
		r.Stride = b.Cols
	case 2:
		r.Stride = r.Cols
	}
	return r
}

func (g generator) attr() (a graph.Attr) {
	for _, f := range graph.AttrFields {
		if g.IntN(4) > 0 {
			continue
		}
		switch v := f.Ptr(&a).(type) {
		case *bool:
			*v = true
		case *int:
			*v = int(g.size() >> 10)
		case *float64:
			*v = g.float()
		case *model.Activation:
			*v = model.Activation(g.IntN(int(model.NumActivations)))
		}
	}
	return a
}

func (g generator) program() *Program {
	p := &Program{Name: g.name(), Rank: g.IntN(100), PlanHash: g.name(), RowUnit: g.IntN(100), BatchRow: g.IntN(100)}
	if n := g.IntN(3); n > 0 {
		p.Sequence = g.IntN(100)
		for range n {
			p.Runs = append(p.Runs, graph.Run{At: g.IntN(100), Rows: g.IntN(100)})
		}
	}
	for _, h := range p.perTier() {
		for t := range h.bytes {
			h.bytes[t] = g.size()
		}
	}
	for range 1 + g.IntN(6) {
		p.Buffers = append(p.Buffers, g.buffer())
	}
	for range g.IntN(4) {
		p.Homes = append(p.Homes, Home{Param: g.IntN(9), Slab: g.IntN(3), Kind: optimizer.Kind(g.IntN(int(optimizer.NumKinds))), At: g.IntN(3), Region: g.region(p), Replica: g.IntN(2) == 0})
	}
	for range g.IntN(8) {
		in := Instr{
			Op: graph.Op(g.IntN(int(graph.NumOps))), Attr: g.attr(), Stream: device.Stream(g.IntN(int(device.NumStreams))),
			Key: Key{Segment: g.IntN(9) - 1, Micro: g.IntN(9) - 1, Chunk: g.IntN(9) - 1, Dir: Direction(g.IntN(len(directions)))},
		}
		for range g.IntN(7) {
			in.Args = append(in.Args, g.region(p))
		}
		for range g.IntN(3) {
			in.Waits = append(in.Waits, g.IntN(1000))
		}
		for range g.IntN(3) {
			in.Peers = append(in.Peers, g.IntN(10))
		}
		in.Tag = max(0, g.IntN(20)-10)
		p.Instrs = append(p.Instrs, in)
	}
	return p
}

// TestTextRoundTrip is law L5.
func TestTextRoundTrip(t *testing.T) {
	seed := testkit.Seed(t)
	g := generator{rand.New(rand.NewPCG(seed, 1))}
	for range 2000 {
		p := g.program()
		text := p.String()
		q, err := Parse(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if !reflect.DeepEqual(p, q) {
			t.Fatalf("parsed differs from printed:\n%s\n%s", text, q)
		}
	}
}

// TestTextCoversEverything: a change to any field of any part of a program
// shows in its text. It fails when a field is added and not printed.
func TestTextCoversEverything(t *testing.T) {
	base := func() *Program {
		return &Program{
			Runs:    []graph.Run{{At: 1, Rows: 2}},
			Buffers: []Buffer{{Name: "a", Rows: 1, Cols: 8, Cuts: []int{1}, Init: []string{"x", "y"}}, {Name: "b", Rows: 1, Cols: 8, Cuts: []int{2}, Init: []string{"z", ""}}},
			Homes:   []Home{{Kind: optimizer.Weights, Region: Region{Rows: 1, Cols: 8, Stride: 8}}},
			Instrs:  []Instr{{Op: graph.Copy, Args: []Region{{Rows: 1, Cols: 4, Stride: 4}}, Waits: []int{0}, Peers: []int{1}}},
		}
	}
	count := 0
	var visit func(path string, at func(p *Program) reflect.Value)
	visit = func(path string, at func(p *Program) reflect.Value) {
		v := at(base())
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				visit(path+"."+v.Type().Field(i).Name, func(p *Program) reflect.Value { return at(p).Field(i) })
			}
			return
		case reflect.Slice, reflect.Array:
			if v.Len() == 0 {
				t.Errorf("%s: empty in the base program", path)
			}
			for i := range v.Len() {
				visit(path+"["+strconv.Itoa(i)+"]", func(p *Program) reflect.Value { return at(p).Index(i) })
			}
			return
		}
		p := base()
		switch v = at(p); v.Kind() {
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.Int, reflect.Int64:
			v.SetInt(v.Int() + 1)
		case reflect.Uint8:
			v.SetUint(v.Uint() + 1)
		case reflect.Float64:
			v.SetFloat(v.Float() + 1)
		case reflect.String:
			v.SetString(v.String() + "!")
		default:
			t.Fatalf("%s: unexpected %v", path, v.Kind())
		}
		count++
		if p.String() == base().String() {
			t.Errorf("%s is not printed", path)
		}
	}
	visit("Program", func(p *Program) reflect.Value { return reflect.ValueOf(p).Elem() })
	if count < 60 {
		t.Fatalf("only %d fields visited", count)
	}
}

const sampleText = `athanor-program 1
name "sample"
rank 0
plan_hash "00c0ffee"
row_unit 16
batch_row 4
capacity 65536 unlimited 0
height 12288 2048 0
bound 12288 2048 0
buffer x device inputs f32 64x16 unit=16 cuts=8 size=4096 align=64 addr=0 persistent init=x
buffer y device activations f32 64x32 unit=16 size=8192 align=64 addr=4096
buffer w host weights f32 1x512 cuts=256 size=2048 align=64 addr=0 persistent init=p:w1,
home 0 p w[1x256]
i0 act(x[64x8], x[64x8@8]) compute key=0,0,-,fwd act=gelu
i1 linear(y, x, w[16x16], -, -) compute key=0,0,3,rec wait=i0 wt scale=0.1
end
`

func TestParseErrors(t *testing.T) {
	p, err := Parse(sampleText)
	if err != nil {
		t.Fatal(err)
	}
	if got := p.String(); got != sampleText {
		t.Fatalf("printed:\n%s\nwant:\n%s", got, sampleText)
	}
	for _, c := range []struct{ from, to, want string }{
		{"athanor-program 1", "athanor-program 2", "line 1: "},
		{"name \"sample\"", "name sample", "line 2: "},
		{"name \"sample\"", "name", "line 2: "},
		{"rank 0", "rank -1", "line 3: -1 is out of range"},
		{"rank 0", "rank 00", "line 3: "},
		{"plan_hash \"00c0ffee\"", "plan_hash 00c0ffee", "line 4: "},
		{"row_unit 16", "rowunit 16", `line 5: found "rowunit 16" where "row_unit"`},
		{"batch_row 4", "batch_row", "line 6: "},
		{"batch_row 4", "batch_row 4 of 64", "line 6: "},
		{"batch_row 4", "batch_row 4 of 64 8", "line 6: "},
		{"capacity 65536 unlimited 0", "capacity 65536 0", "line 7: capacity has 2 numbers"},
		{"height 12288 2048 0", "height unlimited 2048 0", "line 8: "},
		{"12288 2048 0\nbound", "99999999999999999999 2048 0\nbound", "line 8: "},
		{"device inputs", "gpu inputs", "line 10: unknown memory tier"},
		{"inputs f32", "outputs f32", "line 10: unknown class"},
		{"inputs f32", "inputs f31", "line 10: unknown element type"},
		{"64x16 unit", "99999999999x99999999999 unit", "line 10: 99999999999x99999999999 has too many elements"},
		{"64x16 unit", "0x16 unit", "line 10: 0 is out of range"},
		{"64x16 unit", "64 unit", "line 10: "},
		{"cuts=8", "cuts=8,", "line 10: cuts"},
		{"size=4096 ", "", "line 10: field size is missing"},
		{"size=4096", "size=-1", "line 10: size"},
		{"addr=0 persistent", "addr=0 addr=0", "line 10: field \"addr=0\" is unknown here"},
		{"init=x", "init=a%zz", "line 10: name"},
		{"home 0 p w[1x256]", "home 0 p z[1x256]", `line 13: unknown buffer "z"`},
		{"home 0 p w[1x256]", "home 0 p w[1x256", "line 13: operand"},
		{"home 0 p w[1x256]", "home 0 p w[1x256] copy", "line 13: field \"copy\""},
		{"i1 linear", "i2 linear", `line 15: instruction "i2" where i1 belongs`},
		{"i1 linear", "i1 linaer", "line 15: unknown operator"},
		{"compute key=0,0,3", "gpu key=0,0,3", "line 15: unknown stream"},
		{"key=0,0,3,rec", "key=0,0,3,recompute", "line 15: key: unknown direction"},
		{"key=0,0,3,rec", "key=0,3,rec", "line 15: key"},
		{"w[1x256]\ni0", "w[1x256] at=-1\ni0", "line 13: at: -1 is out of range"},
		{"wait=i0", "wait=i0 peers=0,", "line 15: peers"},
		{"wait=i0", "wait=i0 tag=0", "line 15: tag: 0 is out of range"},
		{"wait=i0", "wait=i0 tag=1 peers=2", "line 15: field \"peers=2\""},
		{"wait=i0", "wait=0", "line 15: wait"},
		{"act=gelu", "act=gleu", "line 14: act: unknown activation"},
		{"scale=0.1", "scale=NaN", "line 15: scale"},
		{"wt scale=0.1", "scale=0.1 wt", "line 15: field \"wt\""},
		{"y, x, w[16x16], -, -)", "#3, x, w[16x16], -, -)", "line 15: 3 is out of range"},
		{"end\n", "", "before \"end\"; hint: the file is cut short"},
		{"end\n", "end\nend\n", "line 17: \"end\" after the end"},
		{"buffer w", "buffer x", "line 13: unknown buffer \"w\""},
	} {
		bad := strings.Replace(sampleText, c.from, c.to, 1)
		if bad == sampleText {
			t.Fatalf("%q does not occur", c.from)
		}
		if _, err := Parse(bad); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q for %q: error %v, want %q", c.to, c.from, err, c.want)
		}
	}
	for i := range len(sampleText) - 1 {
		if _, err := Parse(sampleText[:i]); err == nil {
			t.Fatalf("the first %d bytes parse", i)
		}
	}
}

// FuzzText: a program written by hand prints so that it reads back the same.
func FuzzText(f *testing.F) {
	f.Add(sampleText)
	g := generator{rand.New(rand.NewPCG(1, 1))}
	for range 20 {
		f.Add(g.program().String())
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := Parse(s)
		if err != nil {
			return
		}
		q, err := Parse(p.String())
		if err != nil || !reflect.DeepEqual(p, q) {
			t.Fatalf("%v:\n%s", err, p)
		}
	})
}
