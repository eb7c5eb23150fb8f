// Package pty has terminals for tests.
package pty

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Open returns a terminal with the given columns: what it shows, and its keys.
func Open(t *testing.T, columns uint16) (screen, keys *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { screen.Close() })
	fd := int(screen.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	keys, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keys.Close() })
	if err := unix.IoctlSetWinsize(int(keys.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
		t.Fatal(err)
	}
	return screen, keys
}

// Shown is what was written to a terminal since the last look.
func Shown(t *testing.T, screen, keys *os.File) string {
	t.Helper()
	_, err := keys.WriteString("\x00")
	if err != nil {
		t.Fatal(err)
	}
	text, err := bufio.NewReader(screen).ReadString(0)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(text, "\x00")
}
