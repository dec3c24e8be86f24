package fsm

// Table names a kind of record in a Change.
type Table uint8

// The tables.
const (
	TableInfo Table = iota + 1
	TableWorkload
	TableNode
	TableResidual
	TableReplica
	TableEvent
	TableNamespace
	TableDrift
)

// Change is one record before and after an applied log entry. Old and New are pointers
// to the record of its Table, read by the methods below. A record that was made has no Old
// (nil, or a nil pointer), one that was removed has a nil New. Several changes of one record
// in one entry are reported one after another.
//
// Changes are made for every record of every entry and kept for a while by those who
// follow them, so they are small.
type Change struct {
	Table    Table
	Key      string // workload id, node id, "<node>/<workload>" of a residual, with "/<type>" of a drift, replica id, namespace, "" for info and events
	Old, New any
}

// The record before, nil where there was none or the change is of another table.
func (c *Change) OldWorkload() *Workload   { return as[Workload](c.Old) }
func (c *Change) OldNode() *Node           { return as[Node](c.Old) }
func (c *Change) OldResidual() *Residual   { return as[Residual](c.Old) }
func (c *Change) OldReplica() *Replica     { return as[Replica](c.Old) }
func (c *Change) OldInfo() *Info           { return as[Info](c.Old) }
func (c *Change) OldNamespace() *Namespace { return as[Namespace](c.Old) }
func (c *Change) OldDrift() *Drift         { return as[Drift](c.Old) }

// The record after, nil where it is gone or the change is of another table.
func (c *Change) NewWorkload() *Workload   { return as[Workload](c.New) }
func (c *Change) NewNode() *Node           { return as[Node](c.New) }
func (c *Change) NewResidual() *Residual   { return as[Residual](c.New) }
func (c *Change) NewReplica() *Replica     { return as[Replica](c.New) }
func (c *Change) NewEvent() *Event         { return as[Event](c.New) }
func (c *Change) NewInfo() *Info           { return as[Info](c.New) }
func (c *Change) NewNamespace() *Namespace { return as[Namespace](c.New) }
func (c *Change) NewDrift() *Drift         { return as[Drift](c.New) }

func as[R any](record any) *R {
	r, _ := record.(*R)
	return r
}
