package dial

import (
	"context"
	"crypto/tls"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/persys/compute/pki"
)

// Credentials are those of credentials.NewTLS, for either side of a connection,
// except that a connection ends as soon as files know that the certificate at its
// other end is revoked. cfg is one of files' own.
func Credentials(files *pki.Files, cfg *tls.Config) credentials.TransportCredentials {
	return cutting{credentials.NewTLS(cfg), files}
}

type cutting struct {
	credentials.TransportCredentials
	files *pki.Files
}

func (c cutting) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, raw)
	return c.guard(conn, raw, info), info, err
}

func (c cutting) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	return c.guard(conn, raw, info), info, err
}

func (c cutting) guard(conn, raw net.Conn, info credentials.AuthInfo) net.Conn {
	of, ok := info.(credentials.TLSInfo)
	if conn == nil || !ok {
		return conn
	}
	return c.files.CutRevoked(conn, raw, of.State)
}

func (c cutting) Clone() credentials.TransportCredentials {
	return cutting{c.TransportCredentials.Clone(), c.files}
}
