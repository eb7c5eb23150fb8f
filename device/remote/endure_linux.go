package remote

import (
	"net"

	"golang.org/x/sys/unix"

	"github.com/athanor-llm/athanor/device/sealed"
)

// endure bounds the time in which sent bytes must be acknowledged: until they are, the kernel does not
// check whether the other side is alive, and it goes on resending them for a quarter of an hour. It is
// for side only, since control may rightly be full for long.
func endure(conn *sealed.Conn) {
	tcp, ok := conn.Conn.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(vanished.Milliseconds()))
		})
	}
}
