package host

import (
	"crypto/sha256"
	"encoding/hex"
	"net"
	"os"
	"strings"
)

// Suffix returns a text, to append to the host name, that distinguishes machines with the same host name.
// It is the first 12 digits of the machine id, or of a hash of the first hardware address; "" if the
// machine has neither.
func Suffix() string {
	if raw, err := os.ReadFile("/etc/machine-id"); err == nil {
		if text := strings.TrimSpace(string(raw)); len(text) >= 12 {
			return text[:12]
		}
	}
	links, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, link := range links {
		if len(link.HardwareAddr) > 0 && link.Flags&net.FlagLoopback == 0 {
			sum := sha256.Sum256([]byte(link.HardwareAddr.String()))
			return hex.EncodeToString(sum[:6])
		}
	}
	return ""
}
