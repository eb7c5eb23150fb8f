package cluster

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/athanor-llm/athanor/device/remote"
)

// word is what one end of a line says to the other. An empty one says that it is alive.
type word struct {
	Together int    `json:",omitempty"` // leader: processes of the run on the follower's host, itself included
	MPI      bool   `json:",omitempty"` // leader: enter the MPI world now
	Ended    bool   `json:",omitempty"` // leader: the run has ended, with the exit code Code
	Code     int    `json:",omitempty"`
	Left     bool   `json:",omitempty"` // follower: it has heard that, and has left MPI
	Stop     bool   `json:",omitempty"` // follower, agent: it was asked to stop
	Refused  string `json:",omitempty"` // leader, agent: why this process cannot be one of the run

	// Between an agent and the process that it has started, see agent.go.
	Post   *post          `json:",omitempty"` // agent: what it is
	Member *remote.Member `json:",omitempty"` // process: it is ready; the leader hears it too
	Claim  *claim         `json:",omitempty"` // process: what it needs of the host; agent: what is left
}

const (
	beat      = time.Second // between words
	silence   = 8           // beats without a word after which the other end is lost
	mostWord  = 4 << 10     // bytes
	sayWithin = 4 * time.Second
)

// errSilent reports an end that is connected, but says nothing: a process that was stopped, or a network that is gone.
var errSilent = fmt.Errorf("nothing was heard for %v", silence*beat)

// line is a connection between the leader and a follower.
type line struct {
	conn  io.ReadWriteCloser
	heard atomic.Bool // since the latest beat

	mu sync.Mutex // of writing

	once sync.Once
	gone chan struct{} // closed when the line is
	err  error         // why, set before
}

func newLine(conn io.ReadWriteCloser) *line { return &line{conn: conn, gone: make(chan struct{})} }

// say sends a word.
func (l *line) say(w word) error {
	text, err := json.Marshal(w)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c, ok := l.conn.(net.Conn); ok { // pipes have room for all that is said until the other end is lost
		if err := c.SetWriteDeadline(time.Now().Add(sayWithin)); err != nil {
			return err
		}
	}
	_, err = l.conn.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(text))), text...))
	return err
}

// hear receives a word.
func (l *line) hear() (w word, err error) {
	var n [4]byte
	if _, err := io.ReadFull(l.conn, n[:]); err != nil {
		return w, err
	}
	size := binary.LittleEndian.Uint32(n[:])
	if size > mostWord {
		return w, fmt.Errorf("a word of %d bytes is too long", size)
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(l.conn, text); err != nil {
		return w, err
	}
	l.heard.Store(true)
	return w, json.Unmarshal(text, &w)
}

// keep exchanges signs of life and passes on what the other end says, until the line is closed. Time is counted in
// beats, so that a process that was suspended as a whole does not take the others for lost.
func (l *line) keep(each func(word)) {
	go func() {
		for {
			w, err := l.hear()
			if err != nil {
				l.close(err)
				return
			}
			each(w)
		}
	}()
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for quiet := 0; quiet < silence; quiet++ {
		if l.heard.Swap(false) {
			quiet = 0
		}
		if err := l.say(word{}); err != nil {
			l.close(err)
		}
		select {
		case <-l.gone:
			return
		case <-tick.C:
		}
	}
	l.close(errSilent)
}

// close ends the line; the first reason counts.
func (l *line) close(why error) {
	l.once.Do(func() {
		if errors.Is(why, io.EOF) || errors.Is(why, io.ErrUnexpectedEOF) {
			why = errors.New("it hung up")
		}
		l.err = why
		_ = l.conn.Close()
		close(l.gone)
	})
}
