package sealed

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/athanor-llm/athanor/internal/testkit"
)

// wire is one direction between two hosts: what was written can be read, at most so many bytes at a time,
// and nothing waits.
type wire struct {
	net.Conn
	bytes.Buffer
	most func() int
}

func (w *wire) Write(p []byte) (int, error) { return w.Buffer.Write(p[:min(len(p), w.most())]) }

func (w *wire) Read(p []byte) (int, error) {
	n, _ := w.Buffer.Read(p[:min(len(p), w.most())]) // its end is not this one's
	return n, nil
}

func (w *wire) LocalAddr() net.Addr  { return &net.TCPAddr{Port: 1} }
func (w *wire) RemoteAddr() net.Addr { return &net.TCPAddr{Port: 2} }

// pair returns both ends of a wire from the first to the second.
func pair(t testing.TB, most func() int) (a, b *Conn, w *wire) {
	t.Helper()
	w = &wire{most: most}
	keys, err := NewKeys([]byte("secret"), []byte("said"))
	check(t, err)
	a, err = New(w, keys.Client, keys.Server)
	check(t, err)
	b, err = New(w, keys.Server, keys.Client)
	check(t, err)
	return a, b, w
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func all() int { return 1 << 30 }

// TestPassing: what one end writes the other reads, however it is cut on the way, at either end and below
// a connection that takes and gives nothing for a while.
func TestPassing(t *testing.T) {
	r := testkit.Rand(t)
	for range testkit.Count(20, 100, 2000) {
		a, b, _ := pair(t, func() int { return max(0, r.IntN(1<<r.IntN(18))-2) })
		sent, got := make([]byte, r.IntN(1<<r.IntN(20)+1)), []byte(nil)
		for i := range sent {
			sent[i] = byte(r.Uint32())
		}
		scratch := make([]byte, 3*recordBytes)
		for left := sent; len(left) > 0 || a.Pending() || len(got) < len(sent); {
			n, err := a.Write(left[:min(len(left), r.IntN(1<<r.IntN(18)+1))])
			check(t, err)
			left = left[n:]
			n, err = b.Read(scratch[:1+r.IntN(1<<r.IntN(18))])
			check(t, err)
			got = append(got, scratch[:n]...)
		}
		if !bytes.Equal(sent, got) {
			t.Fatalf("%d bytes became %d others", len(sent), len(got))
		}
	}
}

// TestDamage: whatever bit of a conversation is flipped, and whatever record is left out, repeated or
// exchanged, what is read is the beginning of what was written, and then an error that names the
// connection; there is nothing more after it.
func TestDamage(t *testing.T) {
	r := testkit.Rand(t)
	sizes := []int{1, 100, 5, 3000}
	var records, texts [][]byte
	a, _, w := pair(t, all)
	for _, n := range sizes {
		text := make([]byte, n)
		for i := range text {
			text[i] = byte(r.Uint32())
		}
		_, err := a.Write(text)
		check(t, err)
		records, texts = append(records, bytes.Clone(w.Bytes())), append(texts, text)
		w.Reset()
	}
	judge := func(what string, damaged ...[]byte) {
		t.Helper()
		_, b, w := pair(t, all)
		w.Buffer.Write(bytes.Join(damaged, nil))
		var got []byte
		p, err := make([]byte, 4096), error(nil)
		for n := 1; err == nil && n > 0; {
			n, err = b.Read(p[:1+r.IntN(len(p))])
			got = append(got, p[:n]...)
		}
		var d *DamagedError
		if !errors.As(err, &d) || !strings.Contains(err.Error(), ":1 - :2") || !bytes.HasPrefix(bytes.Join(texts, nil), got) {
			t.Errorf("%s: %d bytes, then %v", what, len(got), err)
		}
		if n, again := b.Read(p); n != 0 || again != err {
			t.Errorf("%s: %d bytes and %v after the damage", what, n, again)
		}
	}
	text := bytes.Join(records, nil)
	for range testkit.Count(200, 1000, 30000) {
		bit := r.IntN(8 * len(text))
		text[bit/8] ^= 1 << (bit % 8)
		judge("a flipped bit", text)
		text[bit/8] ^= 1 << (bit % 8)
	}
	judge("left out", records[1:]...)
	judge("repeated", records[0], records[0])
	judge("exchanged", records[1], records[0])
	judge("of nobody", make([]byte, 200))
	back, _, other := pair(t, all)
	back.out = back.in // as the other side sends
	check(t, back.out.begin(mustKeys(t).Server))
	_, err := back.Write(texts[0])
	check(t, err)
	judge("sent back", other.Bytes())
}

func mustKeys(t *testing.T) Keys {
	keys, err := NewKeys([]byte("secret"), []byte("said"))
	check(t, err)
	return keys
}

// TestKeys: each direction, each secret and each conversation has keys of its own.
func TestKeys(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range [][2]string{{"secret", "said"}, {"secret", "said later"}, {"another", "said"}} {
		k, err := NewKeys([]byte(c[0]), []byte(c[1]))
		check(t, err)
		seen[string(k.Client)], seen[string(k.Server)] = true, true
	}
	if len(seen) != 6 {
		t.Errorf("%d keys, not 6", len(seen))
	}
}

// TestHidden: nothing that is said can be read on the way.
func TestHidden(t *testing.T) {
	a, _, w := pair(t, all)
	text := bytes.Repeat([]byte("weights "), 1000)
	_, err := a.Write(text)
	check(t, err)
	if bytes.Contains(w.Bytes(), []byte("eights")) {
		t.Error("it can be read")
	}
}

// TestDeadline: a deadline in the midst of a record loses nothing: reading and writing go on afterwards.
func TestDeadline(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	keys := mustKeys(t)
	a, err := New(near, keys.Client, keys.Server)
	check(t, err)
	b, err := New(far, keys.Server, keys.Client)
	check(t, err)
	check(t, a.SetDeadline(time.Unix(1, 0)))
	n, err := a.Write([]byte("first "))
	if err == nil || n != 6 || !a.Pending() {
		t.Fatalf("%d bytes were taken, and then %v", n, err)
	}
	check(t, a.SetDeadline(time.Time{}))
	go func() {
		_, _ = a.Write([]byte("second"))
	}()
	check(t, b.SetDeadline(time.Unix(1, 0)))
	if _, err := b.Read(make([]byte, 12)); err == nil {
		t.Fatal("no deadline")
	}
	check(t, b.SetDeadline(time.Time{}))
	got := make([]byte, 12)
	if _, err := io.ReadFull(b, got); err != nil || string(got) != "first second" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestSteady is L6: nothing is allocated while bytes pass, whole records and parts.
func TestSteady(t *testing.T) {
	a, b, w := pair(t, all)
	w.Grow(1 << 20)
	p, q := make([]byte, 3*recordBytes), make([]byte, 3*recordBytes)
	step := func() {
		_, _ = a.Write(p)
		for got := 0; got < len(q); {
			n, _ := b.Read(q[got:min(len(q), got+70000)])
			got += n
		}
	}
	if n := testing.AllocsPerRun(20, step); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzRead: whatever arrives, nothing of it is taken for what was sent.
func FuzzRead(f *testing.F) {
	a, _, w := pair(f, all)
	_, err := a.Write([]byte("text"))
	check(f, err)
	whole := bytes.Clone(w.Bytes())
	f.Add(whole)
	f.Add(make([]byte, 100))
	f.Fuzz(func(t *testing.T, text []byte) {
		_, b, w := pair(t, all)
		w.Buffer.Write(text)
		if n, _ := b.Read(make([]byte, 100)); n > 0 && !bytes.HasPrefix(text, whole) {
			t.Errorf("%d bytes of a stranger's", n)
		}
	})
}

// BenchmarkSeal is one record of the largest size, sealed and opened.
func BenchmarkSeal(b *testing.B) {
	from, to, w := pair(b, all)
	w.Grow(1 << 20)
	p := make([]byte, recordBytes)
	rand.NewChaCha8([32]byte{}).Read(p)
	b.SetBytes(recordBytes)
	for b.Loop() {
		_, err := from.Write(p)
		check(b, err)
		_, err = to.Read(p)
		check(b, err)
	}
}
