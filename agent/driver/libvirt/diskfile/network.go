package diskfile

import (
	"fmt"
	"net/url"
	"strings"
)

// Network is the address of a network disk.
type Network struct{ Protocol, Name, Host, Port string }

// ParseNetwork parses the address of a network disk, in one of the three forms that contract/wire-agent.md
// lists.
func ParseNetwork(path string) (*Network, error) {
	if rest, ok := strings.CutPrefix(path, "rbd:"); ok {
		pool, image, ok := strings.Cut(rest, "/")
		if !ok || pool == "" || image == "" {
			return nil, fmt.Errorf("%q is not rbd:<pool>/<image>", path)
		}
		return &Network{Protocol: "rbd", Name: rest}, nil
	}
	if strings.HasPrefix(path, "nfs://") {
		u, err := url.Parse(path)
		if err != nil || u.Hostname() == "" || len(u.Path) < 2 {
			return nil, fmt.Errorf("%q is not nfs://<host>[:port]/<path>", path)
		}
		return &Network{Protocol: "nfs", Name: u.Path, Host: u.Hostname(), Port: u.Port()}, nil
	}
	host, export, ok := strings.Cut(path, ":/")
	if !ok || host == "" || export == "" || strings.Contains(host, "/") {
		return nil, fmt.Errorf("%q is none of /<file>, rbd:<pool>/<image>, nfs://<host>/<path> and <host>:/<path>", path)
	}
	return &Network{Protocol: "nfs", Name: "/" + export, Host: host}, nil
}
