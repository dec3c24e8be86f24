package overlay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/persys/compute/agent/overlay/plan"
)

// monitor is a netlink socket on which the kernel announces changes of one kind of objects.
type monitor struct {
	conn socket
	// ours reports whether a message may be about our interfaces, routes or nftables table.
	ours func(netlink.Message) bool
}

// socket holds the methods of *netlink.Conn that a monitor uses.
type socket interface {
	Receive() ([]netlink.Message, error)
	Close() error
}

// openMonitors opens two monitors in the network namespace of the calling thread: one for nftables, and one for
// interfaces, addresses and routes. bridge reports whether an interface with an index is a bridge of ours.
func openMonitors(bridge func(index int) bool) (out []monitor, err error) {
	for _, m := range []struct {
		family int
		groups []uint32
		ours   func(netlink.Message) bool
	}{
		// At the end of each nftables transaction of any program, the kernel sends a message with a new
		// generation number.
		{unix.NETLINK_NETFILTER, []uint32{unix.NFNLGRP_NFTABLES}, func(m netlink.Message) bool {
			return m.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN
		}},
		{unix.NETLINK_ROUTE, []uint32{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE}, func(m netlink.Message) bool {
			return concernsUs(m) || bridge(newPortOf(m))
		}},
	} {
		conn, err := netlink.Dial(m.family, nil)
		if err != nil {
			return out, fmt.Errorf("opening a monitor of the kernel's networks: %w", err)
		}
		out = append(out, monitor{conn, m.ours})
		for _, g := range m.groups {
			if err := conn.JoinGroup(g); err != nil {
				return out, fmt.Errorf("opening a monitor of the kernel's networks: %w", err)
			}
		}
	}
	return out, nil
}

// watch calls notify for each message that may be about our networks, until ctx ends. If the socket breaks,
// watch returns an error. It always closes the socket.
func (m monitor) watch(ctx context.Context, notify func()) error {
	stop := context.AfterFunc(ctx, func() { _ = m.conn.Close() })
	defer func() {
		if stop() {
			_ = m.conn.Close()
		}
	}()
	for {
		messages, err := m.conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // messages were lost, so anything may have changed
			notify()
			continue
		case err != nil:
			return fmt.Errorf("reading from a monitor of the kernel's networks: %w", err)
		}
		for _, msg := range messages {
			if m.ours(msg) {
				notify()
			}
		}
	}
}

// Sizes in bytes of the fixed headers of the kernel's messages.
const (
	linkHeader    = 16 // struct ifinfomsg
	addressHeader = 8  // struct ifaddrmsg
)

// newPortOf returns the index of the bridge if the message announces a new port of a bridge; 0 for
// other messages.
func newPortOf(m netlink.Message) int {
	if m.Header.Type != unix.RTM_NEWLINK || len(m.Data) < linkHeader {
		return 0
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[linkHeader:])
	if err != nil {
		return 0
	}
	ad.ByteOrder = binary.NativeEndian
	for ad.Next() {
		if ad.Type() == unix.IFLA_MASTER {
			return int(ad.Uint32())
		}
	}
	return 0
}

// concernsUs reports whether a message is about one of our interfaces or its addresses, or about a removed
// route. Messages about other interfaces are frequent and ignored: each start of a container causes some.
func concernsUs(m netlink.Message) bool {
	skip, attribute := linkHeader, uint16(unix.IFLA_IFNAME)
	switch m.Header.Type {
	case unix.RTM_DELROUTE:
		return true
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		skip, attribute = addressHeader, unix.IFA_LABEL
	default:
		return false
	}
	if len(m.Data) < skip {
		return false
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[skip:])
	if err != nil {
		return false
	}
	ad.ByteOrder = binary.NativeEndian
	for ad.Next() {
		if ad.Type() == attribute {
			return plan.OurInterface(ad.String())
		}
	}
	return false
}
