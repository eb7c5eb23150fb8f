package main

import (
	stdctx "context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/athanor-llm/athanor/alloc"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/lab/pack"
)

// packCmd runs the allocator by itself.
type packCmd struct {
	File     string        `arg:"" help:"Buffers, one a line: id,lower,upper,size[,alignment][,offset]; - is standard input."`
	Capacity int64         `help:"Bytes to fit into; 0: find the least height."`
	Timeout  time.Duration `default:"60s" help:"Stop the search after this long and give the best so far."`
	Nodes    int64         `default:"-1" help:"Search nodes allowed; 0: heuristics only, -1: until the timeout."`
	Out      string        `placeholder:"FILE" help:"Write the buffers with their offsets as CSV."`
	SVG      string        `name:"svg" placeholder:"FILE" help:"Draw the packing, or the conflict if there is none."`
}

// packResult is the JSON of the verb.
type packResult struct {
	Height     int64    `json:"height"`
	LowerBound int64    `json:"lower_bound"`
	Optimal    bool     `json:"optimal"`
	Feasible   *bool    `json:"feasible"` // null: neither packed nor refuted within the time limit
	Nodes      int64    `json:"nodes"`
	Seconds    float64  `json:"seconds"`
	Conflict   []string `json:"conflict"`
	Minimal    bool     `json:"conflict_minimal"`
	Buffers    int      `json:"buffers"`
	Capacity   int64    `json:"capacity"`
}

func (v *packCmd) Run(c *cli.Context) error {
	if err := cli.CanWrite(nil, v.Out, v.SVG); err != nil {
		return err
	}
	p, err := v.read()
	if err != nil {
		return err
	}
	ctx, cancel := stdctx.WithTimeout(stdctx.Background(), v.Timeout)
	defer cancel()
	start := time.Now()
	s, packErr := alloc.Pack(ctx, p, alloc.Options{Nodes: v.Nodes, Workers: runtime.NumCPU(), Improve: pack.Improver(0)})
	seconds := time.Since(start).Seconds()
	var conflict *alloc.InfeasibleError
	if packErr != nil && !errors.As(packErr, &conflict) && !errors.Is(packErr, alloc.ErrUndecided) {
		return cli.Misuse(packErr)
	}
	if err := v.write(p, s, packErr, conflict); err != nil {
		return err
	}
	r := packResult{Height: s.Height, LowerBound: s.LowerBound, Optimal: s.Optimal, Nodes: s.Nodes,
		Seconds: seconds, Conflict: []string{}, Buffers: len(p.Buffers), Capacity: v.Capacity}
	if !errors.Is(packErr, alloc.ErrUndecided) {
		feasible := packErr == nil
		r.Feasible = &feasible
	}
	if conflict != nil {
		r.Minimal = conflict.Minimal
		for _, i := range conflict.Conflict {
			r.Conflict = append(r.Conflict, p.Buffers[i].ID)
		}
	}
	if c.JSON {
		err = c.Print(r)
	} else {
		err = r.print(c.Stdout, s)
	}
	return errors.Join(err, packErr)
}

// csvHint is the hint for an unreadable input.
const csvHint = "name a CSV file, or - for standard input"

func (v *packCmd) read() (alloc.Problem, error) {
	if v.Capacity < 0 {
		return alloc.Problem{}, cli.UsageError(fmt.Sprintf("--capacity %d is negative\nhint: give bytes, or 0 for the least height", v.Capacity))
	}
	if v.Nodes < -1 || v.Timeout <= 0 {
		return alloc.Problem{}, cli.UsageError(fmt.Sprintf("--nodes %d or --timeout %v is out of range; hint: use -1 or more nodes, and a timeout above 0", v.Nodes, v.Timeout))
	}
	in := io.Reader(os.Stdin)
	if v.File != "-" {
		f, err := os.Open(v.File)
		if err != nil {
			return alloc.Problem{}, cli.Misuse(suggest.Add(err, csvHint))
		}
		defer f.Close()
		in = f
	}
	p, err := pack.ReadCSV(in)
	if err != nil {
		return p, cli.Misuse(suggest.Add(fmt.Errorf("%s: %w", v.File, err), csvHint))
	}
	p.Capacity = v.Capacity
	return p, nil
}

// write writes the requested files. A packing that exceeds the capacity is drawn,
// but not written.
func (v *packCmd) write(p alloc.Problem, s alloc.Solution, packErr error, conflict *alloc.InfeasibleError) error {
	if v.Out != "" && packErr == nil {
		if err := cli.WriteTo(v.Out, func(w io.Writer) error { return pack.WriteCSV(w, p, &s) }); err != nil {
			return err
		}
	}
	if v.SVG == "" {
		return nil
	}
	return cli.WriteTo(v.SVG, func(w io.Writer) error {
		if conflict != nil {
			return pack.WriteSVG(w, p, nil, conflict.Conflict)
		}
		return pack.WriteSVG(w, p, &s, nil)
	})
}

func (r packResult) print(w io.Writer, s alloc.Solution) error {
	if r.Feasible != nil && !*r.Feasible {
		_, err := fmt.Fprintf(w, "%d buffers do not fit in %d bytes (proven; %d nodes, %.3f s)\n", r.Buffers, r.Capacity, r.Nodes, r.Seconds)
		return err
	}
	verdict := fmt.Sprintf("gap %.2f %%", 100*s.Gap())
	if r.Optimal {
		verdict = "optimal"
	}
	_, err := fmt.Fprintf(w, "%d buffers: height %d, lower bound %d, %s (%d nodes, %.3f s)\n", r.Buffers, r.Height, r.LowerBound, verdict, r.Nodes, r.Seconds)
	return err
}
