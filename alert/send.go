package alert

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"time"
)

// sendTime is how long a webhook or a command may take.
const sendTime = 20 * time.Second

// Sender hands events to a webhook, which gets each as JSON by POST, and to a command, which gets it on its standard
// input. Nobody waits for it: what comes while too much is under way is dropped, and said.
type Sender struct {
	webhook string
	command []string
	note    func(string)
	events  chan Event
	ended   chan struct{}
}

// waiting is how many events may wait.
const waiting = 64

// NewSender returns a sender; nil if there is nobody to send to. note is told what went wrong, and may be called by
// another goroutine until Close returns.
func NewSender(webhook string, command []string, note func(string)) *Sender {
	if webhook == "" && len(command) == 0 {
		return nil
	}
	s := &Sender{webhook, command, note, make(chan Event, waiting), make(chan struct{})}
	go s.work()
	return s
}

// Send sends events, after those before.
func (s *Sender) Send(list ...Event) {
	if s == nil {
		return
	}
	for _, e := range list {
		select {
		case s.events <- e:
		default:
			s.note("an alert is not sent: too many wait: " + e.Text)
		}
	}
}

// Close sends what waits.
func (s *Sender) Close() {
	if s == nil {
		return
	}
	close(s.events)
	<-s.ended
}

func (s *Sender) work() {
	defer close(s.ended)
	for e := range s.events {
		text, err := json.Marshal(e)
		if err != nil {
			continue // strings and numbers can be written
		}
		ctx, stop := context.WithTimeout(context.Background(), sendTime)
		if s.webhook != "" {
			if err := post(ctx, s.webhook, text); err != nil {
				s.note(fmt.Sprintf("an alert is not sent to alerts.webhook: %v", err))
			}
		}
		if len(s.command) > 0 {
			if err := execute(ctx, s.command, text); err != nil {
				s.note(fmt.Sprintf("alerts.command failed: %v", err))
			}
		}
		stop()
	}
}

// post sends JSON. The answer's text does not matter.
func post(ctx context.Context, address string, text []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(text))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) { // whose text has the address, which is a password
			err = u.Err
		}
		return err
	}
	defer answer.Body.Close()
	_, _ = io.CopyN(io.Discard, answer.Body, 64<<10) // so that the connection can be used again
	if answer.StatusCode >= 300 {
		return fmt.Errorf("it answers %s", answer.Status)
	}
	return nil
}

func execute(ctx context.Context, command []string, text []byte) error {
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	c.Stdin = bytes.NewReader(text)
	c.WaitDelay = time.Second
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out[:min(len(out), 400)])))
	}
	return nil
}
