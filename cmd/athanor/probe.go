package main

import (
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/machine"
)

type probeCmd struct {
	Out  string `help:"Write the hardware file." placeholder:"FILE"`
	Disk string `help:"Folder on the disk that is measured." default:"." placeholder:"FOLDER"`

	Ranks  int      `help:"Also measure the links between this many ranks." default:"1"`
	Hosts  []string `help:"Also measure other hosts, on which athanor serve waits, and the links between ranks on them." placeholder:"ADDRESS"`
	Device string   `help:"auto, cpu or cuda." enum:"auto,cpu,cuda" default:"auto"`
}

func (v *probeCmd) Run(c *cli.Context) error {
	if st, err := os.Stat(v.Disk); err != nil || !st.IsDir() {
		return cli.UsageError(fmt.Sprintf("probe: --disk %s is not a folder; hint: name a folder on the disk that runs will spill to", v.Disk))
	}
	if v.Ranks < 1 || v.Ranks > machine.MaxRanks {
		return cli.UsageError(fmt.Sprintf("probe: --ranks %d is out of range; hint: use from 1 to %d", v.Ranks, machine.MaxRanks))
	}
	for i, h := range v.Hosts {
		addr, err := config.Address(h)
		if err != nil {
			return cli.UsageError(fmt.Sprintf("probe: --hosts: %v", err))
		}
		v.Hosts[i] = addr
	}
	if len(v.Hosts) > 0 && v.Ranks == 1 {
		v.Ranks += len(v.Hosts)
	}
	if err := cli.CanWrite(nil, v.Out); err != nil {
		return err
	}
	need := &machine.Request{Device: machine.ChooseDevice(v.Device, c.Note), Spill: v.Disk, Ranks: v.Ranks}
	if len(v.Hosts) > 0 {
		team, l, err := summon(config.Lines{}, v.Hosts)
		if err != nil {
			return err
		}
		defer team.End(0)
		need.Hosts, need.Key, need.Over, need.Together = l.Others, l.Key, l.Over, l.Together
	}
	h, err := machine.Probe(need, c.Note)
	if err != nil {
		return err
	}
	// Drop all cached descriptions: probing means that they are in doubt.
	if err := machine.Forget(); err != nil {
		return err
	}
	if v.Out != "" {
		if err := cli.WriteTo(v.Out, h.Print); err != nil {
			return err
		}
	}
	if c.JSON {
		return h.Print(c.Stdout)
	}
	return printHardware(c, h)
}

// printHardware writes a description as tables.
func printHardware(c *cli.Context, h *hardware.Hardware) error {
	shared := ""
	if h.Memory.Shared {
		shared = ", which are the same memory"
	}
	c.Textf("%s\nmemory: device %s, host %s%s; disk %s\n\n", h.Name,
		size.Format(h.Memory.Device), size.Format(h.Memory.Host), shared, size.Format(h.Memory.Disk))
	tw := tabwriter.NewWriter(c.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "operators\tpeak fp32\tpeak bf16\tmatmul reaches\tattention reaches\tmemory\tper call\t")
	for _, e := range h.Engines {
		fmt.Fprintf(tw, "%v\t%.4g GFLOP/s\t%.4g GFLOP/s\t%.0f %%\t%.0f %%\t%.3g GB/s\t%.3g us\t\n", e.Stream, e.Peak.F32/1e9, e.Peak.BF16/1e9,
			100*e.Matmul, 100*e.Attention, e.Bandwidth/1e9, e.Overhead*1e6)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(c.Stdout)
	fmt.Fprintln(tw, "links\trate\tper copy\t")
	for _, l := range h.Links {
		fmt.Fprintf(tw, "%v to %v\t%.3g GB/s\t%.3g us\t\n", device.Tier(l.From), device.Tier(l.To), l.Bandwidth/1e9, l.Latency*1e6)
	}
	if err := tw.Flush(); err != nil || len(h.Contention) == 0 {
		return err
	}
	fmt.Fprintln(c.Stdout)
	fmt.Fprintln(tw, "work on\twhile busy\ttakes longer by\t")
	for _, x := range h.Contention {
		fmt.Fprintf(tw, "%v\t%v\t%.0f %%\t\n", x.Of, x.By, 100*x.Factor)
	}
	return tw.Flush()
}
