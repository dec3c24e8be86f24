package agent

import (
	"fmt"
	"slices"
	"strings"
	"time"

	agentv1 "github.com/persys/compute/api/agent/v1"
)

// Kinds and states of tasks, as ListActions filters by them.
const (
	actionApply  = "apply_workload"
	actionDelete = "delete_workload"

	taskPending   = "pending"
	taskRunning   = "running"
	taskCompleted = "completed"
	taskFailed    = "failed"
)

// Bounds of the task history.
const (
	maxTasks   = 1000
	maxTaskAge = 7 * 24 * time.Hour
)

// task is the history of one order. A task is not what carries the order out, only its record:
// convergence does, and would do so without it. Published tasks are never changed; copies replace
// them.
type task struct {
	ID        string    `json:"task_id"`
	Workload  string    `json:"workload_id"`
	Action    string    `json:"action_type"`
	Status    string    `json:"status"`
	Error     string    `json:"error,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	StartedAt time.Time `json:"started_at,omitzero"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
}

func newTask(action, workload string, now time.Time) *task {
	word := "apply"
	if action == actionDelete {
		word = "delete"
	}
	return &task{
		ID:       fmt.Sprintf("%s-%s-%d", word, workload, now.UnixNano()),
		Workload: workload, Action: action, Status: taskPending, CreatedAt: now,
	}
}

func (t *task) open() bool { return t != nil && (t.Status == taskPending || t.Status == taskRunning) }

func (t *task) started(now time.Time) *task {
	next := *t
	next.Status, next.StartedAt = taskRunning, now
	return &next
}

func (t *task) ended(message string, failed bool, now time.Time) *task {
	next := *t
	next.Status, next.Error, next.EndedAt = taskCompleted, valid(message), now
	if failed {
		next.Status = taskFailed
	}
	return &next
}

// superseding is what to note of a task that begins while another may be open: the end of that one, and itself.
func superseding(open, t *task, now time.Time) []*task {
	if !open.open() || open == t {
		return []*task{t}
	}
	return []*task{open.ended("superseded by "+t.ID, false, now), t}
}

func unix(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

func (t *task) proto() *agentv1.AgentAction {
	return &agentv1.AgentAction{
		TaskId: t.ID, WorkloadId: t.Workload, ActionType: t.Action, Status: t.Status, Error: t.Error,
		CreatedAt: unix(t.CreatedAt), StartedAt: unix(t.StartedAt), EndedAt: unix(t.EndedAt),
	}
}

// history holds the tasks, oldest first. The agent's lock guards it.
type history struct {
	list []*task
	byID map[string]*task
}

func newHistory(tasks []*task) *history {
	slices.SortFunc(tasks, func(a, b *task) int {
		if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	h := &history{list: tasks, byID: make(map[string]*task, len(tasks))}
	for _, t := range tasks {
		h.byID[t.ID] = t
	}
	return h
}

// put adds or replaces a task.
func (h *history) put(t *task) {
	if old, ok := h.byID[t.ID]; ok {
		// Open tasks are near the end.
		for i := len(h.list) - 1; i >= 0; i-- {
			if h.list[i] == old {
				h.list[i] = t
				break
			}
		}
	} else {
		h.list = append(h.list, t)
	}
	h.byID[t.ID] = t
}

// openFor is the newest open task of a workload; nil if there is none.
func (h *history) openFor(workload string) *task {
	for _, t := range slices.Backward(h.list) {
		if t.Workload == workload && t.open() {
			return t
		}
	}
	return nil
}

// excess returns the ended tasks beyond the bounds.
func (h *history) excess(now time.Time) []*task {
	var out []*task
	over := len(h.list) - maxTasks
	for _, t := range h.list {
		if over <= 0 && now.Sub(t.CreatedAt) <= maxTaskAge {
			break
		}
		if !t.open() {
			out = append(out, t)
			over--
		}
	}
	return out
}

func (h *history) drop(tasks []*task) {
	for _, t := range tasks {
		delete(h.byID, t.ID)
	}
	h.list = slices.DeleteFunc(h.list, func(t *task) bool { return h.byID[t.ID] == nil })
}

// query answers ListActions.
func (h *history) query(req *agentv1.ListActionsRequest) []*agentv1.AgentAction {
	var out []*agentv1.AgentAction
	limit := int(req.GetLimit())
	take := func(t *task) bool {
		for _, f := range [][2]string{{req.GetWorkloadId(), t.Workload}, {req.GetActionType(), t.Action}, {req.GetStatus(), t.Status}} {
			if f[0] != "" && f[0] != f[1] {
				return true
			}
		}
		out = append(out, t.proto())
		return limit <= 0 || len(out) < limit
	}
	if req.GetNewestFirst() {
		for _, t := range slices.Backward(h.list) {
			if !take(t) {
				break
			}
		}
		return out
	}
	for _, t := range h.list {
		if !take(t) {
			break
		}
	}
	return out
}
