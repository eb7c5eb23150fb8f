package remote

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// overheard is a connection of which somebody keeps what its client says.
type overheard struct {
	net.Conn
	said []byte
}

func (o *overheard) Write(p []byte) (int, error) {
	o.said = append(o.said, p...)
	return o.Conn.Write(p)
}

// attack is what a stranger does with a connection; it need not end by itself.
type attack struct {
	name string
	do   func(c net.Conn)
}

// attacks returns all kinds of them on a host, of which one repeats what a leader with the key has said.
func attacks(t *testing.T, addr string) []attack {
	conn, err := net.Dial("tcp", addr)
	check(t, err)
	heard := &overheard{Conn: conn}
	leader, err := introduce(heard, testKey, &opening{Purpose: describing})
	check(t, err)
	check(t, readResult(leader, new(Description)))
	check(t, leader.Close())
	r := rand.New(rand.NewPCG(testkit.Seed(t), 4))
	garbage := make([]byte, 1<<12)
	for i := range garbage {
		garbage[i] = byte(r.Uint32())
	}
	own, huge := greets(t), make([]byte, 1<<20)
	greet := func(c net.Conn, then []byte) {
		_, _ = c.Write(own[:])
		_, _ = io.ReadFull(c, make([]byte, greetingLen))
		_, _ = c.Write(then)
	}
	return []attack{
		{"garbage", func(c net.Conn) { _, _ = c.Write(garbage) }},
		{"another protocol", func(c net.Conn) { _, _ = c.Write(bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 20)) }},
		{"replayed", func(c net.Conn) { _, _ = c.Write(heard.said) }},
		{"no key", func(c net.Conn) { greet(c, huge[:32]) }},
		{"wrong key", func(c net.Conn) {
			_, _ = introduce(c, []byte("another key of attackers"), &opening{Purpose: controlling})
		}},
		{"oversized", func(c net.Conn) { greet(c, huge) }},
		{"hung up", func(c net.Conn) { _ = c.Close() }},
		{"slow", func(c net.Conn) { _, _ = c.Write(own[:1]) }},
	}
}

// TestAttacks: whatever strangers do, with five hundred connections at once, they get no more than a greeting, take little of
// the host's memory and a few lines of its log, write nothing, and keep no leader out.
func TestAttacks(t *testing.T) {
	h := newHost(t, nil)
	before, err := os.ReadDir(h.dir)
	check(t, err)
	kinds := attacks(t, h.addr)
	const connections = 500
	const most = 64 << 10 // bytes of memory for each, what the attacker itself takes included
	one := func(k attack, c net.Conn) {
		k.do(c)
		if n, _ := io.Copy(io.Discard, c); int(n) > greetingLen+1 {
			t.Errorf("%s: the host says %d bytes", k.name, n)
		}
		_ = c.Close()
	}
	for _, k := range kinds {
		if k.name != "slow" { // nobody displaces this one
			c, err := net.Dial("tcp", h.addr)
			check(t, err)
			one(k, c)
		}
	}
	conns := make([]net.Conn, connections)
	for i := range conns {
		conns[i], err = net.Dial("tcp", h.addr)
		check(t, err)
	}
	var memory [2]runtime.MemStats
	runtime.ReadMemStats(&memory[0])
	var all sync.WaitGroup
	for i, c := range conns {
		all.Go(func() { one(kinds[i%len(kinds)], c) })
		if i%100 == 99 {
			check(t, use(h.addr))
		}
	}
	for i, c := range conns {
		if kinds[i%len(kinds)].name == "slow" {
			_ = c.Close()
		}
	}
	all.Wait()
	runtime.ReadMemStats(&memory[1])
	if each := (memory[1].TotalAlloc - memory[0].TotalAlloc) / connections; each > most {
		t.Errorf("each attack takes %d bytes", each)
	}
	h.idle()
	h.mu.Lock()
	defer h.mu.Unlock()
	told := map[string]int{}
	for _, n := range h.notes {
		if !strings.Contains(n, "rank 0 of 1") { // of the leaders
			told[n]++
		}
	}
	for n, times := range told {
		if times > 1 || len(told) > len(kinds) {
			t.Errorf("the log has %d lines, %d times %q", len(told), times, n)
		}
	}
	for _, what := range []string{"does not know the key", "does not speak", "hung up", "gives way"} {
		if !strings.Contains(strings.Join(h.notes, "\n"), what) {
			t.Errorf("the log does not say %q: %q", what, h.notes)
		}
	}
	if after, err := os.ReadDir(h.dir); err != nil || fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the host's folder has %v, %v", after, err)
	}
}
