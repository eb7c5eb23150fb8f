package main

import (
	"cmp"
	stdctx "context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/athanor-llm/athanor/config"
	"github.com/athanor-llm/athanor/hardware"
	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/size"
	"github.com/athanor-llm/athanor/machine"
)

type serveCmd struct {
	Listen string `help:"Address to listen on; default: :7077." placeholder:"[HOST]:PORT"`
	Disk   string `help:"Folder for the data that runs spill to disk." default:"." placeholder:"FOLDER"`
}

// Help is what `serve --help` says besides the flags.
func (serveCmd) Help() string {
	return "A run on another host that names this one under hosts: trains on its cores or GPUs, too. Both must have the same ATHANOR_KEY, a secret text of at least 16 characters, in their environment. " +
		"Their traffic is not encrypted."
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
	l, err := net.ListenTCP("tcp", addr)
	if err != nil {
		return fmt.Errorf("serve: %w; hint: check whether another athanor serve is running, or choose another port with --listen", err)
	}
	ctx, stop := signal.NotifyContext(stdctx.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	m, err := hardware.LocalMemory(v.Disk, 0)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.Stderr, "%s, %d cores, %s of memory: waiting for runs at %s\n", hardware.Processor(), runtime.GOMAXPROCS(0), size.Format(m.Host), l.Addr())
	return machine.Serve(ctx, l, key, v.Disk, func(text string) { fmt.Fprintln(c.Stderr, text) })
}
