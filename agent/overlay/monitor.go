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

// monitor is a socket on which the kernel announces changes.
type monitor struct {
	conn socket
	// ours reports whether a message may concern us.
	ours func(netlink.Message) bool
}

// socket is what a monitor needs of a *netlink.Conn.
type socket interface {
	Receive() ([]netlink.Message, error)
	Close() error
}

// openMonitors opens the monitors of nftables and of interfaces, addresses and routes, in the network namespace of the
// calling thread.
func openMonitors() (out []monitor, err error) {
	for _, m := range []struct {
		family int
		groups []uint32
		ours   func(netlink.Message) bool
	}{
		// Each transaction of any program ends with the number of the new generation.
		{unix.NETLINK_NETFILTER, []uint32{unix.NFNLGRP_NFTABLES}, func(m netlink.Message) bool {
			return m.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN
		}},
		{unix.NETLINK_ROUTE, []uint32{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE}, concernsUs},
	} {
		conn, err := netlink.Dial(m.family, nil)
		if err != nil {
			return out, fmt.Errorf("monitor: %w", err)
		}
		out = append(out, monitor{conn, m.ours})
		for _, g := range m.groups {
			if err := conn.JoinGroup(g); err != nil {
				return out, fmt.Errorf("monitor: %w", err)
			}
		}
	}
	return out, nil
}

// watch calls notify for each message that may concern us, until ctx ends. It returns an error if the socket breaks. It
// closes the socket.
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
			return fmt.Errorf("monitor: %w", err)
		}
		for _, msg := range messages {
			if m.ours(msg) {
				notify()
			}
		}
	}
}

// Lengths of the fixed parts of the kernel's messages.
const (
	linkHeader    = 16 // struct ifinfomsg
	addressHeader = 8  // struct ifaddrmsg
)

// concernsUs reports whether a change of an interface or of an address is one of an interface of ours, or whether a
// route was removed. Other programs change interfaces all the time, for example with each start of a container.
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
