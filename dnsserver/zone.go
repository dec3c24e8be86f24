package dnsserver

import (
	"hash/maphash"

	"github.com/persys/compute/fsm"
)

// Zone holds the answers to all queries for one state. It is immutable and safe for concurrent use.
type Zone struct {
	plan    *plan
	seed    maphash.Seed
	root    [fan]*branch
	names   int
	index   uint64
	servers []server // for NS
	cap     uint32   // upper bound of every TTL in seconds; 0 = none
}

// server is a name server of the zones, with its addresses.
type server struct {
	name name
	glue []record // address records of name, with the TTL of schedulers
}

// Build makes the zone of a state from scratch. Errors name the invalid fields of cfg.
func Build(cfg Config, v fsm.View, h Hints) (*Zone, error) {
	b, err := NewBuilder(cfg, v, h)
	if err != nil {
		return nil, err
	}
	return b.Zone(), nil
}

// Index returns the log index of the state.
func (z *Zone) Index() uint64 { return z.index }

// Serial returns the serial of the SOA: the low 32 bits of Index.
func (z *Zone) Serial() uint32 { return uint32(z.index) }

// Names counts the names that exist, including empty non-terminals.
func (z *Zone) Names() int { return z.names }
