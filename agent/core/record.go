package core

import (
	"fmt"
	"strings"
	"time"

	"github.com/persys/compute/agent/workload"
)

// Meta is the agent's own record in the state file.
type Meta struct {
	// Epoch is the highest epoch seen; orders of a lower epoch are refused. If only its ClusterID is set,
	// that is the cluster that this node joined.
	Epoch Epoch `json:"epoch,omitzero"`
	// InstanceID is a random id, made once per state file. It distinguishes two machines with the
	// same node id.
	InstanceID string `json:"instance_id"`
	// Node is the node id for which the workloads in the file were ordered. It differs from the present id if
	// somebody changed PERSYS_NODE_ID.
	Node string `json:"node,omitempty"`
	// KeyID is the id of the key that encrypts the secrets in the file.
	KeyID string `json:"key_id"`
	// Engine is the cluster id in the labels of this agent's instances. It does not change while there are
	// workloads, because the labels of an instance cannot be changed.
	Engine string `json:"engine,omitempty"`
	// Devices are the numbers of devices, by CDI kind, that the container engine reported last. They are used
	// until the engine answers, also after a restart of the agent.
	Devices map[string]int64 `json:"devices,omitempty"`
}

// Tombstone records the generation at which a workload was deleted, so that older orders that arrive
// later are refused.
type Tombstone struct {
	ID         string              `json:"id"`
	Generation workload.Generation `json:"generation,omitzero"`
	DeletedAt  time.Time           `json:"deleted_at"`
	// KeepVolumes, KeepShared, Retain: see Intent.
	KeepVolumes bool `json:"keep_volumes,omitempty"`
	KeepShared  bool `json:"keep_shared,omitempty"`
	Retain      bool `json:"retain,omitempty"`
	// Done: the workload was removed completely. If Done is not set, the delete is still pending.
	Done bool `json:"done,omitempty"`
	// Exit is how the instance of a job ended when the delete stopped it; nil if the delete stopped no
	// job.
	Exit *Exit `json:"exit,omitempty"`

	version uint64 // value of State.Version when the tombstone last changed; not stored
}

// open reports whether the delete is still pending.
func (t *Tombstone) open() bool { return t != nil && !t.Done }

// closed returns a copy of the tombstone with Done set. It is used when a newer order for the deleted
// workload arrives: the old instance is then removed as part of that order.
func (t *Tombstone) closed() *Tombstone {
	done := *t
	done.Done = true
	return &done
}

// Failure records the failed actions on a workload. The zero value means that no action failed.
type Failure struct {
	Class    workload.Class `json:"class,omitempty"`
	Message  string         `json:"message,omitempty"`
	Attempts int            `json:"attempts,omitempty"`
	At       time.Time      `json:"at,omitzero"`
	// OfNode is the number of failed attempts in a row that failed because of the node, for example because
	// its disk is full.
	OfNode int `json:"of_node,omitempty"`
	// Next is the time of the next attempt. If it is zero and Attempts > 0, the agent makes no
	// further attempt: the schedulers decide what happens next.
	Next time.Time `json:"next,omitzero"`
	// Final: the workload is reported as Failed. If it is false, the workload is reported as Pending.
	Final bool `json:"final,omitempty"`
	// Ended identifies the last exit of an instance that was counted as a failure, so that no exit is counted
	// twice.
	Ended string `json:"ended,omitempty"`
	// Stopped identifies the exit of an instance that the fencer or the agent stopped because the lease had ended. It is
	// not an end of the workload's own, also if a later lease ends before the agent starts again.
	Stopped string `json:"stopped,omitempty"`
}

// Actions and states of tasks (entries of the order history). The API call ListActions filters by them.
const (
	ActionApply  = "apply_workload"
	ActionDelete = "delete_workload"
	ActionGC     = "collect_garbage"

	TaskPending   = "pending"
	TaskRunning   = "running"
	TaskCompleted = "completed"
	TaskFailed    = "failed"
)

// Limits of the task history and of tombstones (records of deleted workloads). A tombstone is kept for longer
// than a delayed order can need to reach the agent.
const (
	MaxTasks   = 1000
	maxTaskAge = 7 * 24 * time.Hour

	maxTombstones   = 100_000
	maxTombstoneAge = 7 * 24 * time.Hour
)

// Task is the history entry of one order. Orders are carried out independently of their tasks. A Task that is
// part of a State is never changed; a change makes a new Task.
type Task struct {
	ID        string    `json:"task_id"`
	Workload  string    `json:"workload_id"`
	Action    string    `json:"action_type"`
	Status    string    `json:"status"`
	Error     string    `json:"error,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	StartedAt time.Time `json:"started_at,omitzero"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
}

// NewTask makes a pending task created now.
func NewTask(action, id string, now time.Time) *Task {
	word := "apply"
	if action == ActionDelete {
		word = "delete"
	}
	return &Task{
		ID: fmt.Sprintf("%s-%s-%d", word, id, now.UnixNano()), Workload: id, Action: action, Status: TaskPending, CreatedAt: now,
	}
}

// Open reports whether the task is pending or running. A nil task is not open.
func (t *Task) Open() bool { return t != nil && (t.Status == TaskPending || t.Status == TaskRunning) }

// Started returns a copy of the task with status running and the start time now.
func (t *Task) Started(now time.Time) *Task {
	next := *t
	next.Status, next.StartedAt = TaskRunning, now
	return &next
}

// Ended returns a copy of the task with the end time now and status failed or completed.
func (t *Task) Ended(message string, failed bool, now time.Time) *Task {
	next := *t
	next.Status, next.Error, next.EndedAt = TaskCompleted, Valid(message), now
	if failed {
		next.Status = TaskFailed
	}
	return &next
}

// key is the sort key of a task: by creation time, oldest first.
func (t *Task) key() string { return fmt.Sprintf("%020d/%s", max(0, t.CreatedAt.UnixNano()), t.ID) }

// Valid replaces invalid UTF-8 in text, which protobuf refuses to marshal.
func Valid(text string) string { return strings.ToValidUTF8(text, "\ufffd") }
