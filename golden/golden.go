// Package golden keeps what a plan needs of memory as a file, so that a later version of a configuration, or of this
// program, that needs something else is caught, with the first buffer or instruction that differs.
//
// A fingerprint is text that people can read and diff:
//
//	athanor-golden 1
//	config "examples/quickstart.yaml"
//	override "hardware.name=l4"
//	rank 0
//	height device 8163656
//	copies device host 524288
//	buffer h0.up.0 device activations 1048576 at 65536
//	i12 linear compute fwd h0.up.0 live 4194304 0 0
//	end
//
// It has no times: of a described machine it is the same wherever it is made. Buffers are listed with their places, then
// instructions with what they write and the live bytes of each tier (device, host, disk) while they run.
//
// Known weakness: it is as long as the program, some 80 bytes for each buffer and instruction.
package golden

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/graph"
	"github.com/athanor-llm/athanor/program"
)

const (
	magic   = "athanor-golden 1"
	end     = "end"
	longest = 1 << 20 // bytes of a line
	most    = 64 << 20
)

// Fingerprint is a configuration and what its plan needs.
type Fingerprint struct {
	Config    string
	Overrides []string
	lines     []string // without header and end
}

// New returns the fingerprint of a plan's programs.
func New(config string, overrides []string, programs []*program.Program) *Fingerprint {
	f := &Fingerprint{Config: config, Overrides: overrides}
	for _, p := range programs {
		f.add(p)
	}
	return f
}

func (f *Fingerprint) say(format string, args ...any) {
	f.lines = append(f.lines, fmt.Sprintf(format, args...))
}

// add adds a rank's program.
func (f *Fingerprint) add(p *program.Program) {
	f.say("rank %d", p.Rank)
	for t := range device.NumTiers {
		if p.Height[t] > 0 {
			f.say("height %s %d", t, p.Height[t])
		}
	}
	f.addTraffic(p)
	for i := range p.Buffers {
		b := &p.Buffers[i]
		f.say("buffer %s %s %s %d at %d", b.Name, b.Tier, program.ClassName(b.Class), b.Size, b.Addr)
	}
	live := liveBytes(p)
	for i := range p.Instrs {
		in := &p.Instrs[i]
		writes := "-"
		if len(in.Args) > 0 {
			writes = p.Buffers[in.Args[0].Buf].Name
		}
		f.say("i%d %s %s %s %s live %d %d %d", i, in.Op, in.Stream, in.Key.Dir, writes, live[i][device.DeviceTier], live[i][device.HostTier], live[i][device.DiskTier])
	}
}

// addTraffic adds the bytes that a step moves.
func (f *Fingerprint) addTraffic(p *program.Program) {
	var moved [device.NumTiers][device.NumTiers]int64
	network := int64(0)
	for i := range p.Instrs {
		switch in := &p.Instrs[i]; {
		case in.Op == graph.Copy:
			dst, src := p.Operand(in.Args[graph.CopyDst]), p.Operand(in.Args[graph.CopySrc])
			moved[src.Tier][dst.Tier] += src.Bytes()
		case in.Op.Info().Between:
			c := p.Call(i)
			network += device.Received(&c, p.Rank)
		}
	}
	for from := range device.NumTiers {
		for to := range device.NumTiers {
			if n := moved[from][to]; n > 0 {
				f.say("copies %s %s %d", from, to, n)
			}
		}
	}
	if network > 0 {
		f.say("received %d", network)
	}
}

// liveBytes returns the live bytes of each tier at each instruction, in the order of the list.
func liveBytes(p *program.Program) [][device.NumTiers]int64 {
	live := make([][device.NumTiers]int64, len(p.Instrs)+1)
	for b, life := range p.Lifetimes() {
		if life[1] <= life[0] {
			continue // never used
		}
		buf := &p.Buffers[b]
		live[life[0]][buf.Tier] += buf.Size
		live[life[1]][buf.Tier] -= buf.Size
	}
	for i := 1; i < len(live); i++ {
		for t := range live[i] {
			live[i][t] += live[i-1][t]
		}
	}
	return live
}

// WriteTo writes the fingerprint.
func (f *Fingerprint) WriteTo(w io.Writer) (n int64, err error) {
	out := bufio.NewWriter(w)
	emit := func(format string, args ...any) {
		k, _ := fmt.Fprintf(out, format+"\n", args...) // errors are sticky
		n += int64(k)
	}
	emit("%s", magic)
	emit("config %s", strconv.Quote(f.Config))
	for _, o := range f.Overrides {
		emit("override %s", strconv.Quote(o))
	}
	for _, l := range f.lines {
		emit("%s", l)
	}
	emit("%s", end)
	return n, out.Flush()
}

// errDamaged says what is wrong with a file that is no fingerprint.
var errDamaged = errors.New("it is no whole fingerprint of a plan; hint: athanor golden write makes one")

// Read reads a fingerprint.
func Read(r io.Reader) (*Fingerprint, error) {
	lines := bufio.NewScanner(io.LimitReader(r, most))
	lines.Buffer(nil, longest)
	if !lines.Scan() || lines.Text() != magic {
		return nil, errDamaged
	}
	f := &Fingerprint{}
	for lines.Scan() {
		kind, rest, _ := strings.Cut(lines.Text(), " ")
		var err error
		switch {
		case kind == "config" && f.lines == nil:
			f.Config, err = strconv.Unquote(rest)
		case kind == "override" && f.lines == nil:
			var o string
			o, err = strconv.Unquote(rest)
			f.Overrides = append(f.Overrides, o)
		case lines.Text() == end:
			if lines.Scan() || f.Config == "" || len(f.lines) == 0 {
				return nil, errDamaged
			}
			return f, nil
		default:
			f.lines = append(f.lines, lines.Text())
		}
		if err != nil {
			return nil, errDamaged
		}
	}
	return nil, errors.Join(errDamaged, lines.Err())
}

// Difference says how now differs: totals, then the first buffer or instruction; "": not at all.
func (f *Fingerprint) Difference(now *Fingerprint) string {
	var text strings.Builder
	rank, told := "", false
	for i := range max(len(f.lines), len(now.lines)) {
		a, b := lineAt(f.lines, i), lineAt(now.lines, i)
		if a == b {
			if strings.HasPrefix(a, "rank ") {
				rank = a
			}
			continue
		}
		if !told {
			fmt.Fprintf(&text, "the first difference, of %s:\n", rank)
			told = true
		}
		fmt.Fprintf(&text, "  was: %s\n  now: %s\n", a, b)
		if !isTotal(a) || !isTotal(b) {
			break
		}
	}
	return text.String()
}

// lineAt returns a line, or what stands for one that is not there.
func lineAt(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "nothing"
}

// isTotal reports whether a line is about a whole program; the cause of a difference is further down.
func isTotal(line string) bool {
	kind, _, _ := strings.Cut(line, " ")
	return kind == "height" || kind == "copies" || kind == "received"
}
