package setup

import (
	"net"
	"os"
	"strings"
	"time"
)

// Status shows text as the status of this program's systemd unit (systemctl status), which is sd_notify(3) with STATUS=.
// It does nothing if the program does not run as a unit, or if the unit has no NotifyAccess. The status is a convenience,
// so errors are ignored.
func Status(text string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	// A name that begins with @ is an abstract socket; package net uses the same notation.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return
	}
	defer conn.Close()
	if err := conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		return
	}
	_, _ = conn.Write([]byte("STATUS=" + strings.ReplaceAll(text, "\n", " ")))
}
