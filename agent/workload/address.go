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
	// FreedAt is the time at which the workload gave up the address; zero while it has the address.
	FreedAt time.Time `json:"freed_at,omitzero"`
}
