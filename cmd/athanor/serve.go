package main

import (
	"cmp"
	stdctx "context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/athanor-llm/athanor/cluster"
	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/device/remote"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/machine"
)

type serveCmd struct {
	Listen    string `help:"Address to listen on; default: :7077, on all interfaces." placeholder:"[HOST]:PORT"`
	Disk      string `help:"Folder for the data that runs spill to disk." default:"." placeholder:"FOLDER"`
	Memory    string `help:"Most of this host's memory that runs take together, such as 64GB; default: all. Memory of GPUs is not part of it." placeholder:"SIZE"`
	DiskSpace string `help:"Most bytes that runs spill to disk together; default: what is free." placeholder:"SIZE"`
	MaxRanks  int    `help:"Most ranks that runs have here at once." default:"64" placeholder:"N"`
}

// Help is what `serve --help` says besides the flags.
func (serveCmd) Help() string {
	return "A run on another host that names this one under hosts: trains on its cores or GPUs, too: it gets a process here, which ends when the run does. Both must have the same ATHANOR_KEY, a secret text of at least 16 characters, in their environment. " +
		"All that passes between them is encrypted and authenticated by this secret."
}

// limits returns what runs may take together.
func (v *serveCmd) limits() (remote.Limits, error) {
	l, err := machine.ServeLimits(v.Disk)
	if err != nil {
		return l, err
	}
	if l.Ranks = v.MaxRanks; l.Ranks < 1 {
		return l, cli.UsageError(fmt.Sprintf("serve: --max-ranks %d: no run could have a rank here; hint: use at least 1", v.MaxRanks))
	}
	for _, f := range []struct {
		flag, text string
		bytes      *int64
	}{{"--memory", v.Memory, &l.Memory}, {"--disk-space", v.DiskSpace, &l.Disk}} {
		if f.text == "" {
			continue
		}
		if *f.bytes, err = size.Parse(f.text); err != nil {
			return l, cli.UsageError(fmt.Sprintf("serve: %s: %v", f.flag, err))
		}
	}
	return l, nil
}

func (v *serveCmd) Run(c *cli.Context) error {
	key, err := machine.Key()
	if err != nil {
		return cli.UsageError(fmt.Sprintf("serve: %v", err))
	}
	addr, err := net.ResolveTCPAddr("tcp", cmp.Or(v.Listen, ":"+config.HostPort))
	if err != nil {
		return cli.UsageError(fmt.Sprintf("serve: --listen %s: %v; hint: use an address such as :%s", v.Listen, err, config.HostPort))
	}
	if err := machine.Writable(v.Disk); err != nil {
		return cli.UsageError(fmt.Sprintf("serve: --disk: %v; hint: name a folder that can be written", err))
	}
	limits, err := v.limits()
	if err != nil {
		return err
	}
	l, err := net.ListenTCP("tcp", addr)
	if err != nil {
		return fmt.Errorf("serve: %w; hint: check whether another athanor serve is running, or choose another port with --listen", err)
	}
	self, err := os.Executable()
	if err != nil {
		return errors.Join(err, l.Close())
	}
	ctx, stop := signal.NotifyContext(stdctx.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	stdctx.AfterFunc(ctx, stop) // a second signal does not wait for runs to end
	c.Tellf("%s, %d cores: waiting for runs at %s, which may take %s of memory, %s of disk and %d ranks together\n",
		hardware.Processor(), runtime.GOMAXPROCS(0), where(l.Addr()), size.Format(limits.Memory), size.Format(limits.Disk), limits.Ranks)
	a := cluster.Agent{Key: key, Lent: cluster.Lent{Spill: v.Disk}, Limits: limits, Command: startProcess(self), Note: func(text string) { fmt.Fprintln(c.Stderr, text) }}
	if tcp := l.Addr().(*net.TCPAddr); !tcp.IP.IsUnspecified() {
		a.Lent.Host = tcp.IP.String()
	}
	return a.Serve(ctx, l)
}

// where names an address, and says if it is one of every network that this host is in.
func where(a net.Addr) string {
	if tcp, ok := a.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		return fmt.Sprintf("%s (all interfaces; --listen takes one address)", a)
	}
	return a.String()
}
