package core

import (
	"fmt"
	"strings"
	"time"

	"github.com/persys/compute/agent/workload"
)

// Meta is the agent's own record.
type Meta struct {
	// Epoch is the first fence; with only a ClusterID, the cluster this node joined.
	Epoch Epoch `json:"epoch,omitzero"`
	// InstanceID is random, made once for each state file: it tells two machines under one node id
	// apart.
	InstanceID string `json:"instance_id"`
	// Node is the node whose workloads these are.
	Node string `json:"node,omitempty"`
	// KeyID names the key that sealed the secrets in the file.
	KeyID string `json:"key_id"`
	// Engine is the cluster id on the labels of instances. It is fixed while there are workloads,
	// because labels of an instance cannot be changed.
	Engine string `json:"engine,omitempty"`
}

// Tombstone keeps the generation at which a workload was deleted, so that an older order that comes
// late is refused.
type Tombstone struct {
	ID         string              `json:"id"`
	Generation workload.Generation `json:"generation,omitzero"`
	DeletedAt  time.Time           `json:"deleted_at"`
	// KeepVolumes, KeepShared: see Intent.
	KeepVolumes bool `json:"keep_volumes,omitempty"`
	KeepShared  bool `json:"keep_shared,omitempty"`
	// Done: nothing of the workload is left. Until then the tombstone is an order to be carried out.
	Done bool `json:"done,omitempty"`

	version uint64 // of the last change to report; not stored
}

// open reports whether the delete has still to be carried out.
func (t *Tombstone) open() bool { return t != nil && !t.Done }

// closed is the tombstone after a newer order: removing the old instance is part of that order now.
func (t *Tombstone) closed() *Tombstone {
	done := *t
	done.Done = true
	return &done
}

// Failure is what the agent remembers of failed steps; zero means that nothing failed.
type Failure struct {
	Class    workload.Class `json:"class,omitempty"`
	Message  string         `json:"message,omitempty"`
	Attempts int            `json:"attempts,omitempty"`
	At       time.Time      `json:"at,omitzero"`
	// Next is when to try again. Zero with Attempts > 0 means never: the schedulers decide.
	Next time.Time `json:"next,omitzero"`
	// Final: reported as Failed. Until then the workload is Pending.
	Final bool `json:"final,omitempty"`
	// Ended marks the end of an instance that is already counted.
	Ended string `json:"ended,omitempty"`
}

// Kinds and states of tasks, as ListActions filters by them.
const (
	ActionApply  = "apply_workload"
	ActionDelete = "delete_workload"
	ActionGC     = "collect_garbage"

	TaskPending   = "pending"
	TaskRunning   = "running"
	TaskCompleted = "completed"
	TaskFailed    = "failed"
)

// Bounds of the task history and of tombstones. Tombstones outlive any order that may still be on its
// way.
const (
	MaxTasks   = 1000
	maxTaskAge = 7 * 24 * time.Hour

	maxTombstones   = 100_000
	maxTombstoneAge = 7 * 24 * time.Hour
)

// Task is the history of one order. Carrying out an order does not depend on it. A published Task is
// never changed; a new one replaces it.
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

// NewTask is one that begins now.
func NewTask(action, id string, now time.Time) *Task {
	word := "apply"
	if action == ActionDelete {
		word = "delete"
	}
	return &Task{
		ID: fmt.Sprintf("%s-%s-%d", word, id, now.UnixNano()), Workload: id, Action: action, Status: TaskPending, CreatedAt: now,
	}
}

// Open reports whether the task has not ended. A nil task has.
func (t *Task) Open() bool { return t != nil && (t.Status == TaskPending || t.Status == TaskRunning) }

// Started is the task when its work has begun.
func (t *Task) Started(now time.Time) *Task {
	next := *t
	next.Status, next.StartedAt = TaskRunning, now
	return &next
}

// Ended is the task when its work has ended.
func (t *Task) Ended(message string, failed bool, now time.Time) *Task {
	next := *t
	next.Status, next.Error, next.EndedAt = TaskCompleted, Valid(message), now
	if failed {
		next.Status = TaskFailed
	}
	return &next
}

// key orders tasks from the oldest to the newest.
func (t *Task) key() string { return fmt.Sprintf("%020d/%s", max(0, t.CreatedAt.UnixNano()), t.ID) }

// Valid is text in which everything that is not UTF-8 is replaced: protobuf refuses to send it.
func Valid(text string) string { return strings.ToValidUTF8(text, "\ufffd") }
