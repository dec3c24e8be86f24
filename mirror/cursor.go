package mirror

import (
	"encoding/json"
	"fmt"

	"github.com/persys/compute/fsm"
)

// cursor is the value of the cursor key in etcd. It fences writers (a writer whose cursor is no longer there
// cannot write) and stores the log index to resume from.
type cursor struct {
	Incarnation uint64 `json:"incarnation"`
	Term        uint64 `json:"term"`
	Index       uint64 `json:"index"`
	Digest      string `json:"digest"` // state digest at Index, 16 hex digits
	// Upto is set while one batch of changes is split over several transactions. Meanwhile some records in
	// etcd are newer than Index, up to the index Upto. If Upto is 0, no record is newer than Index.
	Upto     uint64 `json:"upto,omitempty"`
	Complete bool   `json:"complete"`
	Format   int    `json:"format"`
	Layout   Layout `json:"layout"`
	Shape    string `json:"shape,omitempty"` // hash of the settings that decide about keys and values, see Projection.shape
	// Writer and Seq make every cursor value unique. If a transaction is abandoned after a timeout and
	// reaches etcd later, the cursor there is another one, and etcd refuses the transaction.
	Writer string `json:"writer"`
	Seq    uint64 `json:"seq"`

	raw string // the cursor's text in etcd; "": the key does not exist
}

func (c *cursor) epoch() fsm.Epoch { return fsm.Epoch{Incarnation: c.Incarnation, Term: c.Term} }

func parseCursor(raw string) (cursor, error) {
	c := cursor{}
	if err := json.Unmarshal([]byte(raw), &c); err != nil {
		return cursor{raw: raw}, fmt.Errorf("the cursor key in etcd has the value %.100q: %w", raw, err)
	}
	c.raw = raw
	return c, nil
}

// owner is the value of the owner key in etcd, which names the cluster that may write below the prefix.
type owner struct {
	ClusterID string `json:"clusterId"`

	raw string
}

func parseOwner(raw string) (owner, error) {
	o := owner{}
	if err := json.Unmarshal([]byte(raw), &o); err != nil || o.ClusterID == "" {
		return owner{raw: raw}, fmt.Errorf("the owner key in etcd has the value %.100q, which names no cluster", raw)
	}
	o.raw = raw
	return o, nil
}

func ownerOf(cluster string) owner {
	o := owner{ClusterID: cluster}
	o.raw = string(encode(o))
	return o
}

func digestText(d uint64) string { return fmt.Sprintf("%016x", d) }
