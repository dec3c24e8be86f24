package config

import (
	"fmt"
	"net"
	"strconv"
)

// Listen opens a TCP port. An error names the setting that gave the port. Port 0 means any free port.
func Listen(setting, host string, port int) (net.Listener, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("%s %d: %w", setting, port, err)
	}
	return l, nil
}
