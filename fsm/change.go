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
)

// Change is one record before and after an applied log entry. Exactly the
// pointers of its Table are set; a nil New means removed, a nil Old means made.
// Several changes of one record in one entry are reported one after another.
type Change struct {
	Table Table
	Key   string // workload id, node id, "<node>/<workload>" of a residual, replica id, namespace, "" for info and events

	OldWorkload, NewWorkload *Workload
	OldNode, NewNode         *Node
	OldResidual, NewResidual *Residual
	OldReplica, NewReplica   *Replica
	NewEvent                 *Event
	OldInfo, NewInfo         *Info

	OldNamespace, NewNamespace *Namespace
}
