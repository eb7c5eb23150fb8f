package cluster

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/machine"
)

// notice is the file by which rank 0 tells the others where it waits.
type notice struct {
	Addresses []string // with ports
	Key       string   // drawn for this run; "": the environment's
}

// noticeFile is its name in the run's folder, and mostNotice bounds its bytes.
const noticeFile, mostNotice = ".athanor-processes", 64 << 10

// post writes the notice, which only its owner can read, so that it is there as a whole.
func (n *notice) post(folder string) error {
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(folder, noticeFile+"-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(folder, noticeFile))
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// look reads the notice. One that others could have written or read is refused: it has the key.
func look(folder string) (*notice, error) {
	path := filepath.Join(folder, noticeFile)
	if err := private(path); err != nil {
		return nil, err
	}
	text, err := bounded.ReadFile(path, mostNotice)
	if err != nil {
		return nil, err
	}
	n := new(notice)
	if err := json.Unmarshal(text, n); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

// remove removes the notice once all have come.
func remove(folder string) { _ = os.Remove(filepath.Join(folder, noticeFile)) }

// ownKey returns the key of the environment, nil if there is none. One that is too short is an error.
func ownKey() ([]byte, error) {
	if os.Getenv(machine.KeyVariable) == "" {
		return nil, nil
	}
	return machine.Key()
}

// drawn returns a new key.
func drawn() []byte { return []byte(rand.Text() + rand.Text()) }

// listen returns where rank 0 waits: at the port that all know, if it is free, else at any. If all processes are on
// this host, nobody else can reach it.
func (l *Launch) listen() (net.Listener, error) {
	host := ""
	if l.alone() {
		host = "127.0.0.1"
	}
	at, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(l.Port)))
	if err != nil && l.Port != 0 {
		at, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	}
	return at, err
}

// Meeting says where this process would wait for the others, as rank 0, or look for it. An error says what is in the way.
func (l *Launch) Meeting() (string, error) {
	if l.Rank > 0 {
		text := "it finds process 0 by the folder `out`, if that is shared"
		if l.Leader == "" || l.Port == 0 {
			return text, nil
		}
		if _, err := net.LookupHost(l.Leader); err != nil {
			return text, fmt.Errorf("%s, which %s names as the host of process 0, is not known here: %w", l.Leader, l.Source, err)
		}
		return text + ", or at " + net.JoinHostPort(l.Leader, strconv.Itoa(l.Port)), nil
	}
	at, err := l.listen()
	if err != nil {
		return "", err
	}
	list, err := reachable(at)
	if err = errors.Join(err, at.Close()); err != nil {
		return "", err
	}
	text := "the others reach it at " + strings.Join(list, ", ")
	switch port := at.Addr().(*net.TCPAddr).Port; {
	case l.Port == 0:
		text += " (another port each time)"
	case port != l.Port:
		return text, fmt.Errorf("port %d, which %s names, is taken: only a shared folder `out` tells the others of another one", l.Port, l.Source)
	}
	return text, nil
}

// reachable returns the addresses at which others may reach a listener.
func reachable(at net.Listener) (list []string, err error) {
	tcp := at.Addr().(*net.TCPAddr)
	port := strconv.Itoa(tcp.Port)
	if !tcp.IP.IsUnspecified() {
		return []string{net.JoinHostPort(tcp.IP.String(), port)}, nil
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
			list = append(list, net.JoinHostPort(ip.IP.String(), port))
		}
	}
	return append(list, net.JoinHostPort("127.0.0.1", port)), nil
}
