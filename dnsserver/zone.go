package dnsserver

import (
	"hash/maphash"

	"github.com/persys/compute/fsm"
)

// Zone is everything that can be asked at one state. It never changes; any
// number of goroutines may ask it.
type Zone struct {
	plan    *plan
	seed    maphash.Seed
	root    [fan]*branch
	names   int
	index   uint64
	servers []server // NS
	cap     uint32   // no TTL is longer, seconds; 0 = no cap
}

// server is a name server of our zones, and where it is.
type server struct {
	name name
	glue []record // owner is name; their TTL is the scheduler's
}

// Build makes the zone of a state from scratch. Errors name the fields of cfg.
func Build(cfg Config, v fsm.View, h Hints) (*Zone, error) {
	b, err := NewBuilder(cfg, v, h)
	if err != nil {
		return nil, err
	}
	return b.Zone(), nil
}

// Index is the log index of the state.
func (z *Zone) Index() uint64 { return z.index }

// Serial is the SOA's: the low 32 bits of Index.
func (z *Zone) Serial() uint32 { return uint32(z.index) }

// Names counts the names that exist, the empty ones between others included.
func (z *Zone) Names() int { return z.names }
