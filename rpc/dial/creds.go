package dial

import (
	"context"
	"crypto/tls"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/persys/compute/pki"
)

// To returns a connection to the peer want at addr (host:port), which is dialled at its first use. If files
// is nil, the connection has no TLS. To ignores HTTP proxy settings.
func To(files *pki.Files, addr string, want pki.Peer, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if files != nil {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			host = addr
		}
		want.Hosts = []string{host}
		creds = Credentials(files, files.ClientConfig(want))
	}
	return grpc.NewClient("passthrough:///"+addr, append([]grpc.DialOption{grpc.WithTransportCredentials(creds), grpc.WithNoProxy()}, more...)...)
}

// Credentials returns TLS credentials for a client or a server, like credentials.NewTLS. In addition, a
// connection is closed as soon as its peer's certificate is revoked. A method of files must have made cfg.
func Credentials(files *pki.Files, cfg *tls.Config) credentials.TransportCredentials {
	return revocable{credentials.NewTLS(cfg), files}
}

type revocable struct {
	credentials.TransportCredentials
	files *pki.Files
}

func (c revocable) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, raw)
	return c.cutRevoked(conn, raw, info), info, err
}

func (c revocable) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	return c.cutRevoked(conn, raw, info), info, err
}

func (c revocable) cutRevoked(conn, raw net.Conn, info credentials.AuthInfo) net.Conn {
	of, ok := info.(credentials.TLSInfo)
	if conn == nil || !ok {
		return conn
	}
	return c.files.CutRevoked(conn, raw, of.State)
}

func (c revocable) Clone() credentials.TransportCredentials {
	return revocable{c.TransportCredentials.Clone(), c.files}
}
