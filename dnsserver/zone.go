package dnsserver

import (
	"hash/maphash"

	"github.com/persys/compute/fsm"
)

// Zone holds the answers to all queries about one version of the replicated state. It is immutable and safe
// for concurrent use.
type Zone struct {
	plan    *plan
	seed    maphash.Seed
	root    [fan]*branch
	names   int
	index   uint64
	servers []server // name servers of the zones, for NS records
	cap     uint32   // maximum of every TTL in seconds; 0 means no maximum
}

// server is a name server that the NS records of the zones list, with its address records.
type server struct {
	name name
	glue []record // address records of the name server, with the TTL for schedulers
}

// Build makes the zone of the state v from scratch. Errors name the invalid fields of cfg.
func Build(cfg Config, v fsm.View, h Hints) (*Zone, error) {
	b, err := NewBuilder(cfg, v, h)
	if err != nil {
		return nil, err
	}
	return b.Zone(), nil
}

// Index returns the Raft log index of the zone's state.
func (z *Zone) Index() uint64 { return z.index }

// Serial returns the serial number in the SOA record: the low 32 bits of Index.
func (z *Zone) Serial() uint32 { return uint32(z.index) }

// Names returns the number of names that exist, including names without records that have names below them.
func (z *Zone) Names() int { return z.names }
