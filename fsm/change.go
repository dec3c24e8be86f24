package fsm

// Table is the kind of record in a Change.
type Table uint8

// The tables whose changes are reported.
const (
	TableInfo Table = iota + 1
	TableWorkload
	TableNode
	TableResidual
	TableReplica
	TableEvent
	TableNamespace
	TableDrift
	TablePolicy
	TableBundle
	TableNetwork
	TableObject
	TableVolume
	TableMove
)

// Change holds one record before and after an applied log entry. Old and New are pointers to the
// record type of Table; the methods below read them. Old is nil, or a nil pointer, if the record
// was created. New is nil, or a nil pointer, if the record was removed. If one entry changes a
// record several times, each change is reported, in order.
//
// Every record of every entry yields a Change, and the change feed keeps the newest ones, so the
// type is small.
type Change struct {
	Table Table
	// Key is the key of the record in its table: the id of a workload, node or replica, the name of a
	// namespace or policy, <namespace>/<name> for a network, "<namespace>/<kind>/<name>" for an object,
	// "<namespace>/<name>/<driver>/<node>" for a volume, the id of the workload for a move of volumes, the digest of a bundle,
	// "<node>/<workload>" for a residual,
	// "<node>/<workload>/<type>" for a drift, "" for info and events.
	Key      string
	Old, New any
}

// The Old methods return the record before the change; nil if the record is new, or if the
// change is about another table.
func (c *Change) OldWorkload() *Workload   { return as[Workload](c.Old) }
func (c *Change) OldNode() *Node           { return as[Node](c.Old) }
func (c *Change) OldResidual() *Residual   { return as[Residual](c.Old) }
func (c *Change) OldReplica() *Replica     { return as[Replica](c.Old) }
func (c *Change) OldInfo() *Info           { return as[Info](c.Old) }
func (c *Change) OldNamespace() *Namespace { return as[Namespace](c.Old) }
func (c *Change) OldMove() *Move           { return as[Move](c.Old) }
func (c *Change) OldDrift() *Drift         { return as[Drift](c.Old) }

// The New methods return the record after the change; nil if the record was removed, or if
// the change is about another table.
func (c *Change) NewWorkload() *Workload   { return as[Workload](c.New) }
func (c *Change) NewNode() *Node           { return as[Node](c.New) }
func (c *Change) NewResidual() *Residual   { return as[Residual](c.New) }
func (c *Change) NewReplica() *Replica     { return as[Replica](c.New) }
func (c *Change) NewEvent() *Event         { return as[Event](c.New) }
func (c *Change) NewInfo() *Info           { return as[Info](c.New) }
func (c *Change) NewNamespace() *Namespace { return as[Namespace](c.New) }
func (c *Change) NewMove() *Move           { return as[Move](c.New) }
func (c *Change) NewDrift() *Drift         { return as[Drift](c.New) }
func (c *Change) NewPolicy() *Policy       { return as[Policy](c.New) }
func (c *Change) NewBundle() *Bundle       { return as[Bundle](c.New) }
func (c *Change) NewObject() *Object       { return as[Object](c.New) }

func as[R any](record any) *R {
	r, _ := record.(*R)
	return r
}
