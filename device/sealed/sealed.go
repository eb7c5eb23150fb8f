// Package sealed protects a connection between two hosts: what one side reads is what the other wrote, in
// this order, or an error; and nobody else can read it.
//
// Approach: both sides derive a key for each direction from the secret that they share and from what they
// said to each other at first, which was never said before (Keys). What is written is cut into records,
// each encrypted by AES-GCM under the number of the record:
//
//	| length | length inverted | length bytes, encrypted | tag |
//	  u32      u32                                         16 bytes
//
// Whatever is changed, left out, repeated or exchanged on the way, the tag of a record does not fit, and
// reading ends there: the rest of the connection is worth nothing. The length is said twice, so that one
// that was damaged is noticed at once, and not waited for.
//
// A record is small enough to stay in a core's cache while it is encrypted and copied to the kernel, and
// large enough that its system call and its tag cost little. Each direction has a buffer for one record,
// so nothing is allocated while bytes pass.
//
//	c, err := sealed.New(conn, keys.Client, keys.Server) // on the other side, keys.Server comes first
//	c.Write(gradients)
//
// The connection below may be one that never waits, as those of package link are: then Write takes and Read
// gives what is possible now, perhaps nothing.
//
// Known weaknesses: the end of a connection is not protected: whoever reads must know how much has to come. The
// lengths of records and their times can be seen.
package sealed

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net"
)

const (
	recordBytes = 64 << 10 // that one record holds at most
	headBytes   = 8
	tagBytes    = 16
	keyBytes    = 16 // AES-128
)

// Keys are those of the two directions, by who sends.
type Keys struct{ Client, Server []byte }

// NewKeys derives keys from a secret and from what both sides have said, of which a part must be new. If part of the secret
// is new and forgotten, nobody who learns the rest later can derive them.
func NewKeys(secret, said []byte) (k Keys, err error) {
	if k.Client, err = hkdf.Key(sha256.New, secret, said, "athanor records of the client", keyBytes); err != nil {
		return k, err
	}
	k.Server, err = hkdf.Key(sha256.New, secret, said, "athanor records of the server", keyBytes)
	return k, err
}

// Conn is a connection whose bytes are protected. One goroutine may read while another writes.
type Conn struct {
	net.Conn // that the records pass through
	name     string
	out, in  half
	plain    []byte // of in's buffer: opened, but not read yet
	err      error  // of reading, since a record was damaged
}

// half is one direction.
type half struct {
	cipher.AEAD
	nonce  [12]byte // number of the next record
	buffer []byte
	lo, hi int // of buffer: what is still to be sent; or what has arrived, but was not opened
}

// New protects a connection, each side of which sends with the key that the other receives with.
func New(conn net.Conn, send, receive []byte) (*Conn, error) {
	c := &Conn{Conn: conn, name: fmt.Sprintf("%v - %v", conn.LocalAddr(), conn.RemoteAddr())}
	if err := c.out.begin(send); err != nil {
		return nil, err
	}
	return c, c.in.begin(receive)
}

func (h *half) begin(key []byte) error {
	block, err := aes.NewCipher(key)
	if err == nil {
		h.AEAD, err = cipher.NewGCM(block)
	}
	// A read of a whole record then ends with the head of the next, so that a record takes one read.
	h.buffer = make([]byte, headBytes+recordBytes+tagBytes+headBytes)
	return err
}

// records is how many have been sealed or opened.
func (h *half) records() uint64 { return binary.BigEndian.Uint64(h.nonce[4:]) }

// count ends a record.
func (h *half) count() { binary.BigEndian.PutUint64(h.nonce[4:], h.records()+1) }

// Write sends p, and before it what an earlier Write left behind. If the connection takes no more for now,
// it returns how much of p was taken, of which a record may still be Pending.
func (c *Conn) Write(p []byte) (n int, err error) {
	for {
		if err := c.send(); err != nil || c.Pending() || len(p) == 0 {
			return n, err
		}
		k := min(len(p), recordBytes)
		c.seal(p[:k])
		n, p = n+k, p[k:]
	}
}

// Pending reports whether some of what Write took has not been sent. Another Write, even of nothing, goes
// on with it.
func (c *Conn) Pending() bool { return c.out.lo < c.out.hi }

// send sends what is left of the record in the buffer.
func (c *Conn) send() error {
	o := &c.out
	for o.lo < o.hi {
		n, err := c.Conn.Write(o.buffer[o.lo:o.hi])
		if o.lo += n; n == 0 || err != nil {
			return err
		}
	}
	return nil
}

// seal makes p the record in the buffer.
func (c *Conn) seal(p []byte) {
	o := &c.out
	binary.LittleEndian.PutUint32(o.buffer, uint32(len(p)))
	binary.LittleEndian.PutUint32(o.buffer[4:], ^uint32(len(p)))
	o.lo, o.hi = 0, len(o.Seal(o.buffer[:headBytes], o.nonce[:], p, nil))
	o.count()
}

// Read reads what has arrived, of one record at most. After a record that was damaged, it returns nothing else.
func (c *Conn) Read(p []byte) (n int, err error) {
	for n == 0 && len(p) > 0 && c.err == nil {
		if len(c.plain) > 0 {
			n = copy(p, c.plain)
			c.plain = c.plain[n:]
			break
		}
		record, err := c.arrived()
		switch {
		case err != nil:
			c.err = err
		case record != nil:
			n, c.err = c.open(record, p)
		default:
			if got, err := c.receive(); got == 0 { // an error beside bytes comes again
				return 0, err
			}
		}
	}
	return n, c.err
}

// arrived returns the next record, without its head, if all of it is in the buffer.
func (c *Conn) arrived() ([]byte, error) {
	b := c.in.buffer[c.in.lo:c.in.hi]
	if len(b) < headBytes {
		return nil, nil
	}
	n := binary.LittleEndian.Uint32(b)
	if n == 0 || n > recordBytes || n != ^binary.LittleEndian.Uint32(b[4:]) {
		return nil, c.damaged()
	}
	if len(b) < headBytes+int(n)+tagBytes {
		return nil, nil
	}
	return b[headBytes:][:int(n)+tagBytes], nil
}

// open decrypts a record to p, or where it is if p is too short; what p does not take is read next.
func (c *Conn) open(record, p []byte) (int, error) {
	to, direct := record[:0], len(p) >= len(record)-tagBytes
	if direct {
		to = p[:0]
	}
	plain, err := c.in.Open(to, c.in.nonce[:], record, nil)
	if err != nil {
		return 0, c.damaged()
	}
	c.in.count()
	if c.in.lo += headBytes + len(record); direct {
		return len(plain), nil
	}
	n := copy(p, plain)
	c.plain = plain[n:]
	return n, nil
}

// receive reads more of the record of which a part, perhaps nothing, is in the buffer.
func (c *Conn) receive() (int, error) {
	in := &c.in
	if in.lo > 0 {
		in.hi = copy(in.buffer, in.buffer[in.lo:in.hi])
		in.lo = 0
	}
	n, err := c.Conn.Read(in.buffer[in.hi:])
	in.hi += n
	return n, err
}

// damaged is the error of a record that is not the one that was sent.
func (c *Conn) damaged() error {
	return &DamagedError{c.name, c.in.records()}
}

// DamagedError reports that what arrived on a connection is not what was sent.
type DamagedError struct {
	Conn   string // addresses of both ends
	Before uint64 // records that arrived as they were sent
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("bytes were changed on the way on the connection %s, after %d records; nothing of them was used "+
		"(if it happens again, check cables, network cards and memory)", e.Conn, e.Before)
}
