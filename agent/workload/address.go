package workload

import (
	"net/netip"
	"time"
)

// NetworkAddress is an address that the agent gave to a container of a workload.
type NetworkAddress struct {
	Network  uint32     `json:"network"`
	Address  netip.Addr `json:"address"`
	Workload string     `json:"workload"`
	// FreedAt is when the container was removed; zero while the workload has the address.
	FreedAt time.Time `json:"freed_at,omitzero"`
}
