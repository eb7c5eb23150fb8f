package main

import (
	stdctx "context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/athanor-llm/athanor/internal/cli"
	"github.com/athanor-llm/athanor/internal/paths"
	"github.com/athanor-llm/athanor/watch"
)

type watchCmd struct {
	Runs   []string `arg:"" optional:"" help:"Folders of runs, or folders that hold some; default: runs." placeholder:"RUN"`
	Listen string   `help:"Address to listen on. Unless it is this machine's own, those who ask need a key." default:"127.0.0.1:7007" placeholder:"HOST:PORT"`
}

// Help is what watch --help says besides the flags.
func (watchCmd) Help() string {
	return "Shows runs on a page, while they go on and afterwards, and their latest numbers at /metrics, for Prometheus. Only files of the named runs are read. " +
		"The key is that in " + watchKey + ", or else drawn and printed. From another machine: ssh -L 7007:localhost:7007 HOST."
}

// watchKey is the variable with the key that readers on other machines must have.
const watchKey = "ATHANOR_WATCH_KEY"

// dashboardAddress is where a page is, if nothing else is there.
const dashboardAddress = "127.0.0.1:7007"

func (v *watchCmd) Run(c *cli.Context) error {
	if len(v.Runs) == 0 {
		if !paths.Exists("runs") {
			return cli.UsageError("watch: which run? there is no folder runs; hint: name the folder `out` of a run")
		}
		v.Runs = []string{"runs"}
	}
	set, err := watch.Open(v.Runs)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", v.Listen)
	if err != nil {
		return fmt.Errorf("watch: %w; hint: choose another address with --listen, such as 127.0.0.1:0", err)
	}
	key := os.Getenv(watchKey)
	if tcp, ok := l.Addr().(*net.TCPAddr); key == "" && (!ok || !tcp.IP.IsLoopback()) {
		key = rand.Text()
	}
	ctx, stop := signal.NotifyContext(stdctx.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c.Tellf("%d runs at %s\n", len(set.Names()), pageAddress(l, key))
	return watch.New(set, watch.Options{Key: key}).Serve(ctx, l)
}

// pageAddress returns what to open in a browser.
func pageAddress(l net.Listener, key string) string {
	if key != "" {
		key = "?key=" + key
	}
	return fmt.Sprintf("http://%s/%s", l.Addr(), key)
}

// watchRun serves a run's page until the context ends, and says where. No run ends for it.
func watchRun(ctx stdctx.Context, c *cli.Context, dir string) {
	set, err := watch.Open([]string{dir})
	var l net.Listener
	if err == nil {
		if l, err = net.Listen("tcp", dashboardAddress); err != nil { // another run's page is there
			l, err = net.Listen("tcp", "127.0.0.1:0")
		}
	}
	if err != nil {
		c.Tellf("WARNING: there is no page: %v\n", err)
		return
	}
	c.Tellf("page: %s; also later, with athanor watch %s\n", pageAddress(l, ""), dir)
	go func() { _ = watch.New(set, watch.Options{}).Serve(ctx, l) }()
}
