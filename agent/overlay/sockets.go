package overlay

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/persys/compute/agent/workload"
)

// sockets lists the sockets of the machine at which programs wait for connections and datagrams.
type sockets struct{ conn *netlink.Conn }

// openSockets opens the netlink socket, in the network namespace of the calling thread.
func openSockets() (*sockets, error) {
	conn, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if err != nil {
		return nil, fmt.Errorf("opening the socket that lists the sockets of the machine: %w", err)
	}
	return &sockets{conn}, nil
}

func (s *sockets) Close() { _ = s.conn.Close() }

// States of sockets in the kernel. A UDP socket that is not connected to one address has the state number that
// means closed for TCP.
const (
	stateClosed = 7
	stateListen = 10
)

// Layout of the messages inet_diag_req_v2 and inet_diag_msg of the kernel.
const (
	diagRequest      = 56
	diagReplyPort    = 4 // source port, big endian
	diagReplyAddress = 8 // source address, 16 bytes
	diagReply        = 72
)

// listening returns, sorted, those of the given ports that programs of the machine use. It ignores sockets at
// loopback addresses and at the addresses in except.
func (s *sockets) listening(ports []workload.IngressPort, except []netip.Addr) (out []workload.IngressPort, err error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		for _, protocol := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			request := make([]byte, diagRequest)
			request[0], request[1] = family, protocol
			state := uint32(1) << stateListen
			if protocol == unix.IPPROTO_UDP {
				state = 1 << stateClosed
			}
			binary.NativeEndian.PutUint32(request[4:], state)
			replies, err := s.conn.Execute(netlink.Message{
				Header: netlink.Header{Type: unix.SOCK_DIAG_BY_FAMILY, Flags: netlink.Request | netlink.Dump}, Data: request,
			})
			if err != nil {
				return nil, err
			}
			for _, m := range replies {
				if len(m.Data) < diagReply {
					continue
				}
				p := workload.IngressPort{Port: binary.BigEndian.Uint16(m.Data[diagReplyPort:]), UDP: protocol == unix.IPPROTO_UDP}
				size := 4
				if family == unix.AF_INET6 {
					size = 16
				}
				a, _ := netip.AddrFromSlice(m.Data[diagReplyAddress : diagReplyAddress+size])
				if a = a.Unmap(); a.IsLoopback() || slices.Contains(except, a) || !slices.Contains(ports, p) {
					continue
				}
				out = append(out, p)
			}
		}
	}
	slices.SortFunc(out, workload.IngressPort.Compare)
	return slices.Compact(out), nil
}
