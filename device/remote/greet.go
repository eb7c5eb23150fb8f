package remote

import (
	"cmp"
	"crypto/ecdh"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"os"
	"reflect"
	"time"

	"github.com/athanor-llm/athanor/device"
	"github.com/athanor-llm/athanor/device/sealed"
	"github.com/athanor-llm/athanor/graph"
)

// How a connection begins.
//
// Each side says which protocol and which operators it knows and sends the public half of a key of X25519 that
// it has drawn for this connection. Then each proves that it knows the key that both share, by a MAC of all
// that was said and of its role, so that nobody can send back what it received:
//
//	client                                          server
//	greeting: magic, protocol, fingerprint, public ─►
//	                                              ◄─ greeting
//	MAC(key, "client", both greetings)            ─►
//	                                              ◄─ 1, MAC(key, "server", both); or 0
//	message: what the connection is for           ─►
//	                                              ◄─ answer
//
// After the proofs, all that either side says is protected (package sealed) by keys that are derived from
// the key, both greetings, and what only they can compute who know a private half. Those are forgotten with
// the connection, so whoever has recorded it and learns the key later cannot read it.
//
// The fingerprint is a hash of all that both must understand alike: operators and their operands, and
// the types of messages. Builds that would misunderstand each other part here, with an error on both
// sides. A server says so after the proof only: what strangers claim to be is no news.
//
// Invariants: before the proofs, nothing is read but fields of fixed size; the key is
// never sent; and all of it ends within the time patience. Known weakness: whoever
// listens can try keys against a MAC, so a key must be random, not a password.

const (
	protocol     = 5
	magic        = "athanor\n"
	publicBytes  = 32
	publicAt     = len(magic) + 4 + sha256.Size
	greetingLen  = publicAt + publicBytes
	patience     = 5 * time.Second // with a peer that must answer at once
	keyHint      = "hint: set ATHANOR_KEY to the same secret on both sides"
	versionHint  = "hint: run the same build of athanor on all hosts"
	strangerHint = "hint: check that the other side is athanor (athanor serve, if it listens)"
)

// greeting is what a side says before it trusts the other.
type greeting [greetingLen]byte

// newGreeting returns one and the private half of the key whose public half it has.
func newGreeting() (g greeting, private *ecdh.PrivateKey, err error) {
	if private, err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
		return g, nil, err
	}
	at := copy(g[:], magic)
	binary.LittleEndian.PutUint32(g[at:], protocol)
	print := fingerprint()
	copy(g[at+4:], print[:])
	copy(g[publicAt:], private.PublicKey().Bytes())
	return g, private, nil
}

// check compares a greeting with this side's.
func (g *greeting) check(own *greeting) error {
	const version = len(magic) + 4
	switch le := binary.LittleEndian; {
	case string(g[:len(magic)]) != magic:
		return fmt.Errorf("it does not speak athanor's protocol; %s", strangerHint)
	case le.Uint32(g[len(magic):]) != protocol:
		return fmt.Errorf("it speaks version %d of the protocol, and this side version %d; %s", le.Uint32(g[len(magic):]), protocol, versionHint)
	case string(g[version:publicAt]) != string(own[version:publicAt]):
		return fmt.Errorf("it has other operators than this build; %s", versionHint)
	case string(g[publicAt:]) == string(own[publicAt:]):
		return fmt.Errorf("it sends back what it receives; %s", strangerHint)
	}
	return nil
}

// proof is the MAC by which a side in a role proves that it knows the key.
func proof(key []byte, role string, client, server *greeting) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(role))
	mac.Write(client[:])
	mac.Write(server[:])
	return mac.Sum(nil)
}

// keysAfter derives the keys of what is said after two greetings, of which the other side's is other and private belongs to
// this side's.
func keysAfter(key []byte, client, server *greeting, private *ecdh.PrivateKey, other *greeting) (none sealed.Keys, err error) {
	public, err := ecdh.X25519().NewPublicKey(other[publicAt:])
	if err != nil {
		return none, err
	}
	both, err := private.ECDH(public)
	if err != nil { // no key that was drawn gives this
		return none, fmt.Errorf("its greeting has an impossible key: %w; %s", err, strangerHint)
	}
	return sealed.NewKeys(append(both, key...), append(client[:], server[:]...))
}

var errNoKey = errors.New("there is no key; hint: set ATHANOR_KEY to the same random secret on all hosts")

// greetServer is the client's side. It returns the keys of what follows.
func greetServer(conn io.ReadWriter, key []byte) (none sealed.Keys, err error) {
	if len(key) == 0 {
		return none, errNoKey
	}
	var other greeting
	own, private, err := newGreeting()
	if err != nil {
		return none, err
	}
	if _, err := conn.Write(own[:]); err != nil {
		return none, silent(err)
	}
	if _, err := io.ReadFull(conn, other[:]); err != nil {
		return none, silent(err)
	}
	if err := other.check(&own); err != nil {
		return none, err
	}
	if _, err := conn.Write(proof(key, "client", &own, &other)); err != nil {
		return none, silent(err)
	}
	var verdict [1 + sha256.Size]byte
	if _, err := io.ReadFull(conn, verdict[:1]); err != nil {
		return none, silent(err)
	}
	if verdict[0] != 1 {
		return none, fmt.Errorf("it does not accept this key; %s", keyHint)
	}
	if _, err := io.ReadFull(conn, verdict[1:]); err != nil {
		return none, silent(err)
	}
	if !hmac.Equal(verdict[1:], proof(key, "server", &own, &other)) {
		return none, fmt.Errorf("it does not know the key; %s", keyHint)
	}
	return keysAfter(key, &own, &other, private, &other)
}

// greetClient is the server's side.
func greetClient(conn io.ReadWriter, key []byte) (none sealed.Keys, err error) {
	var other greeting
	if _, err := io.ReadFull(conn, other[:]); err != nil {
		return none, silent(err)
	}
	own, private, err := newGreeting()
	if err != nil {
		return none, err
	}
	differs := other.check(&own)
	if string(other[:len(magic)]) != magic { // a stranger is told nothing
		return none, differs
	}
	if _, err := conn.Write(own[:]); err != nil {
		return none, silent(err)
	}
	var mac [sha256.Size]byte
	if _, err := io.ReadFull(conn, mac[:]); err != nil {
		return none, cmp.Or(differs, silent(err))
	}
	if !hmac.Equal(mac[:], proof(key, "client", &other, &own)) {
		_, _ = conn.Write([]byte{0})
		return none, cmp.Or(differs, fmt.Errorf("it does not know the key; %s", keyHint))
	}
	if _, err := conn.Write(append([]byte{1}, proof(key, "server", &other, &own)...)); err != nil || differs != nil {
		return none, cmp.Or(differs, err)
	}
	return keysAfter(key, &other, &own, private, &other)
}

// silent explains why a greeting ended early.
func silent(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("it did not complete the greeting within %v; %s", patience, strangerHint)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("it hung up during the greeting; %s", strangerHint)
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) { // without its addresses, by which the log would not see that it is the same
		err = op.Err
	}
	return fmt.Errorf("the greeting failed: %w; %s", err, strangerHint)
}

// opening says what a connection is for.
type opening struct {
	Purpose purpose
	Place   Place  // of a device to open
	Lease   string // that a side connection belongs to
	Link    Hello
	Member  Member  // that joins
	Process Process // to start
}

type purpose uint8

const (
	describing purpose = 1 + iota
	controlling
	siding
	linking
	joining
	starting
)

// opened is the answer to the opening of a device.
type opened struct {
	Lease string // for the side connection
	Info  device.Info
	Tunes bool // the device is a device.Tuner
}

// dial connects to a host, for a purpose that the host accepts.
func dial(addr string, key []byte, o *opening) (*sealed.Conn, error) {
	dialer := net.Dialer{Timeout: patience, KeepAliveConfig: alive}
	conn, err := dialer.Dial("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%w; hint: check that athanor serve is running there and that this host can reach its port", err)
	}
	c, err := introduce(conn, key, o)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return c, nil
}

func introduce(conn net.Conn, key []byte, o *opening) (*sealed.Conn, error) {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	keys, err := greetServer(conn, key)
	if err != nil {
		return nil, err
	}
	c, err := sealed.New(conn, keys.Client, keys.Server)
	if err != nil {
		return nil, err
	}
	hello, err := appendMessage(nil, o)
	if err != nil {
		return nil, err
	}
	if _, err = c.Write(hello); err != nil {
		return nil, err
	}
	if o.Purpose >= siding { // others are answered with a result
		refused, err := readAnswer(c, make([]byte, 1))
		if err = errors.Join(refused, err); err != nil {
			return nil, err
		}
	}
	return c, c.SetDeadline(time.Time{})
}

// fingerprint is a hash of what both sides must understand alike.
func fingerprint() (sum [sha256.Size]byte) {
	h := sha256.New()
	for op := range graph.NumOps {
		fmt.Fprintln(h, op, op.Info().Between)
		for _, a := range op.Info().Args {
			fmt.Fprintf(h, "%+v\n", a)
		}
	}
	for t := range device.NumTiers {
		fmt.Fprintln(h, t)
	}
	for s := range device.NumStreams {
		fmt.Fprintln(h, s)
	}
	for t := range graph.NumDTypes {
		fmt.Fprintln(h, t, t.Size())
	}
	for _, v := range []any{device.Call{}, device.Stats{}, opening{}, opened{}, Description{}} {
		describe(h, reflect.TypeOf(v))
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// describe writes a type as a tree of kinds and names.
func describe(h hash.Hash, t reflect.Type) {
	fmt.Fprintln(h, t.Kind(), t.Name())
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			fmt.Fprintln(h, t.Field(i).Name)
			describe(h, t.Field(i).Type)
		}
	case reflect.Array:
		fmt.Fprintln(h, t.Len())
		describe(h, t.Elem())
	case reflect.Slice:
		describe(h, t.Elem())
	}
}
