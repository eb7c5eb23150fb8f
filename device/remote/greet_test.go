package remote

import (
	"bytes"
	"crypto/sha256"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/athanor-llm/athanor/device/sealed"
)

// edited is a greeting of another build.
func edited(t *testing.T, at int) greeting {
	g := greets(t)
	g[at] ^= 1
	return g
}

// greets returns a greeting of this build.
func greets(t testing.TB) greeting {
	t.Helper()
	g, _, err := newGreeting()
	check(t, err)
	return g
}

func answerWith(text []byte) func(conn net.Conn) {
	return func(conn net.Conn) {
		_, _ = io.ReadFull(conn, make([]byte, greetingLen))
		_, _ = conn.Write(text)
	}
}

// TestStrangers: anyone who is not an athanor of this build that knows the key is refused with the
// reason, by either side, in bounded time. (The clock is the test's own.)
func TestStrangers(t *testing.T) {
	version, print := edited(t, len(magic)), edited(t, len(magic)+4)
	fresh := greets(t)
	cases := map[string]struct {
		want     string
		stranger func(conn net.Conn)
	}{
		"silence":       {"did not complete the greeting", func(net.Conn) { time.Sleep(time.Minute) }},
		"half a word":   {"did not complete the greeting", func(conn net.Conn) { answerWith(fresh[:9])(conn); time.Sleep(time.Minute) }},
		"hung up":       {"hung up", answerWith(nil)},
		"hung up later": {"hung up", func(conn net.Conn) { answerWith(fresh[:greetingLen-1])(conn); conn.Close() }},
		"garbage":       {"does not speak", answerWith(bytes.Repeat([]byte("HTTP/1.1 400\r\n"), 20))},
		"version":       {"protocol", answerWith(version[:])},
		"operators":     {"other operators", answerWith(print[:])},
	}
	servers := map[string]struct {
		want     string
		stranger func(conn net.Conn)
	}{
		"echo":    {"sends back", func(conn net.Conn) { _, _ = io.CopyN(conn, conn, int64(greetingLen)) }},
		"refuses": {"does not accept", func(conn net.Conn) { _, _ = greetClient(conn, []byte("another key")) }},
		"accepts anybody": {"does not know the key", func(conn net.Conn) {
			answerWith(fresh[:])(conn)
			_, _ = io.ReadFull(conn, make([]byte, sha256.Size))
			_, _ = conn.Write(append([]byte{1}, make([]byte, sha256.Size)...))
		}},
		"replays the proof": {"does not know the key", func(conn net.Conn) {
			answerWith(fresh[:])(conn)
			mac := make([]byte, sha256.Size)
			_, _ = io.ReadFull(conn, mac)
			_, _ = conn.Write(append([]byte{1}, mac...))
		}},
	}
	for name, c := range cases {
		servers[name] = c
	}
	for name, c := range servers {
		t.Run("server/"+name, func(t *testing.T) {
			meet(t, c.want, c.stranger, func(conn net.Conn) error {
				_, err := introduce(conn, testKey, &opening{Purpose: describing})
				return err
			})
		})
	}
	clients := cases
	delete(clients, "half a word") // of a server, which waits for the greeting first
	delete(clients, "hung up later")
	delete(clients, "hung up")
	for name, c := range clients {
		stranger := c.stranger
		if strings.Contains("garbage version operators", name) {
			text := map[string][]byte{"garbage": bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 20), "version": version[:], "operators": print[:]}[name]
			stranger = func(conn net.Conn) {
				_, _ = conn.Write(text)
				_, _ = io.ReadFull(conn, make([]byte, greetingLen))
			}
		}
		t.Run("client/"+name, func(t *testing.T) {
			meet(t, c.want, stranger, func(conn net.Conn) error {
				s := &server{key: testKey, conns: map[net.Conn]bool{}}
				s.guests.enter(conn)
				_, _, err := s.receive(conn)
				return err
			})
		})
	}
	t.Run("client/hung up", func(t *testing.T) {
		meet(t, "hung up", func(net.Conn) {}, greeted)
	})
	t.Run("client/key", func(t *testing.T) {
		meet(t, "does not know the key", func(conn net.Conn) { _, _ = greetServer(conn, []byte("another key")) }, greeted)
	})
}

// TestForward: both sides derive the same keys, of which whoever has heard all that was said and learns the secret later has none,
// and each connection has others; a public key from which anybody could compute what is common to both is refused.
func TestForward(t *testing.T) {
	seen := map[string]bool{}
	for range 3 {
		a, b := net.Pipe()
		client, server := &overheard{Conn: a}, &overheard{Conn: b}
		type derived struct {
			keys sealed.Keys
			err  error
		}
		done := make(chan derived, 1)
		go func() {
			keys, err := greetClient(server, testKey)
			done <- derived{keys, err}
		}()
		keys, err := greetServer(client, testKey)
		check(t, err)
		other := <-done
		if check(t, other.err); !bytes.Equal(keys.Client, other.keys.Client) || !bytes.Equal(keys.Server, other.keys.Server) {
			t.Error("the sides have other keys")
		}
		said := append(client.said[:greetingLen:greetingLen], server.said[:greetingLen]...)
		ours, theirs := said[publicAt:greetingLen], said[greetingLen+publicAt:]
		for _, known := range [][]byte{nil, make([]byte, publicBytes), ours, theirs} {
			guess, err := sealed.NewKeys(append(append([]byte(nil), known...), testKey...), said)
			check(t, err)
			if bytes.Equal(guess.Client, keys.Client) {
				t.Error("what was said and the secret give the keys")
			}
		}
		for _, k := range [][]byte{keys.Client, keys.Server} {
			if seen[string(k)] {
				t.Error("keys come again")
			}
			seen[string(k)] = true
		}
	}
	own, private, err := newGreeting()
	check(t, err)
	low := own
	clear(low[publicAt:])
	if _, err := keysAfter(testKey, &own, &low, private, &low); err == nil || !strings.Contains(err.Error(), "impossible key") {
		t.Errorf("a key of zeros: %v", err)
	}
}

// greeted is the server's side of a greeting.
func greeted(conn net.Conn) error {
	_, err := greetClient(conn, testKey)
	return err
}

// meet lets a stranger talk to us.
func meet(t *testing.T, want string, stranger func(conn net.Conn), us func(conn net.Conn) error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		ended := make(chan struct{})
		go func() {
			stranger(b)
			_ = b.Close()
			close(ended)
		}()
		start := time.Now()
		err := us(a)
		_ = a.Close()
		if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "hint:") != 1 {
			t.Errorf("error is %v, want %q", err, want)
		}
		if took := time.Since(start); took > patience {
			t.Errorf("after %v", took)
		}
		<-ended
	})
}

// TestKey: without the key nothing can be had from a host; it says so, and goes on.
func TestKey(t *testing.T) {
	h := newHost(t, nil)
	wrong := []byte("another key")
	_, describe := Describe(h.addr, wrong, Place{})
	_, open := Open(h.addr, wrong, Place{}, time.Now())
	_, link := Link(h.addr, wrong, Hello{Fabric: "f"})
	_, none := Describe(h.addr, nil, Place{})
	for _, err := range []error{describe, open, link, none} {
		if err == nil || !strings.Contains(err.Error(), "key") || !strings.Contains(err.Error(), h.addr) {
			t.Errorf("error is %v", err)
		}
	}
	if err := Serve(t.Context(), nil, nil, h, NewBudget(plenty), nil); err == nil {
		t.Error("a host without a key")
	}
	asked := time.Now()
	about, err := Describe(h.addr, testKey, Place{})
	if about.Ahead > 0 || about.Ahead < -time.Since(asked) { // its clock is this one
		t.Errorf("the host's clock is %v ahead", about.Ahead)
	}
	check(t, err)
	if about.Cores != 3 || about.Host != 1<<40 {
		t.Errorf("it is %v", about)
	}
}

// TestNobody: a host that does not answer is named.
func TestNobody(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	_ = l.Close()
	if _, err := Open(l.Addr().String(), testKey, Place{}, time.Now()); err == nil || strings.Count(err.Error(), "hint:") != 1 || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("error is %v", err)
	}
}

// TestRefused: places that make no sense are refused by either side, and the opener's own error
// arrives.
func TestRefused(t *testing.T) {
	h := newHost(t, nil)
	for _, p := range []Place{
		{Rank: 1, Ranks: 2}, {Fabric: "f", Rank: 2, Ranks: 2}, {Fabric: "f", Rank: -1, Ranks: 2}, {Fabric: "f"},
		{Fabric: "f", Ranks: 1, HostOf: []int{1}, Hosts: []string{""}}, {Ranks: 1, HostOf: []int{0, 0}, Hosts: []string{""}},
		{Rate: [9]float64{-1}}, {Share: -1},
	} {
		if _, err := Open(h.addr, testKey, p, time.Now()); err == nil {
			t.Errorf("%+v was opened", p)
		}
		conn, err := dial(h.addr, testKey, &opening{Purpose: controlling, Place: p})
		check(t, err)
		if err := readResult(conn, new(opened)); err == nil {
			t.Errorf("%+v was opened by the host", p)
		}
		_ = conn.Close()
	}
	if _, err := Open(h.addr, testKey, Place{Share: 99}, time.Now()); err == nil || !strings.HasSuffix(err.Error(), "too many share") {
		t.Errorf("error is %v", err)
	}
	for _, o := range []opening{{}, {Purpose: 77}, {Purpose: siding, Lease: "guessed"}} {
		conn, err := dial(h.addr, testKey, &o)
		if err == nil {
			err = readResult(conn, new(opened))
		}
		if err == nil || !strings.Contains(err.Error(), "unknown purpose") && !strings.Contains(err.Error(), "no such device") {
			t.Errorf("%v: %v", o, err)
		}
	}
}

// TestLink: a data connection is passed on with what it is for, and without losing a byte.
func TestLink(t *testing.T) {
	h := newHost(t, nil)
	here, err := Link(h.addr, testKey, Hello{Fabric: "f", From: 1, To: 2, Kind: 3})
	check(t, err)
	defer here.Close()
	there := <-h.links
	defer there.Close()
	for _, c := range [][2]*sealed.Conn{{here, there}, {there, here}} {
		sent, got := []byte("some data"), make([]byte, 9)
		_, err := c[0].Write(sent)
		check(t, err)
		_, err = io.ReadFull(c[1], got)
		check(t, err)
		if !bytes.Equal(sent, got) {
			t.Errorf("%q became %q", sent, got)
		}
	}
	refused, err := Link(h.addr, testKey, Hello{})
	check(t, err)
	defer refused.Close()
	if _, err := io.ReadFull(refused, make([]byte, 1)); err == nil {
		t.Error("a refused connection has data")
	}
}

// FuzzGreet: no bytes are greeted back but those of someone who knows the key.
func FuzzGreet(f *testing.F) {
	g := greets(f)
	f.Add(g[:])
	f.Add(append(g[:], make([]byte, sha256.Size)...))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		conn := &script{in: bytes.NewReader(text)}
		_, server := greetClient(conn, testKey)
		_, client := greetServer(&script{in: bytes.NewReader(text)}, testKey)
		if server == nil || client == nil {
			t.Error("greeted")
		}
	})
}
