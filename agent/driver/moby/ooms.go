package moby

import (
	"sync"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
)

// ooms holds the ids of running containers in which the kernel has killed a process for lack of memory. The ids
// come from events, which engines send for each such kill. The container's state is not enough: some engines
// set OOMKilled in it only if the container's first process was killed.
type ooms struct {
	mu  sync.Mutex
	ids map[string]bool
}

// maxOOMs bounds the number of ids. An id is dropped by an event about the end of its container, and such
// events may be lost.
const maxOOMs = 4096

// note updates the ids after an event of a container.
func (o *ooms) note(action events.Action, id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch action {
	case events.ActionOOM:
		if o.ids == nil || len(o.ids) >= maxOOMs {
			o.ids = map[string]bool{}
		}
		o.ids[id] = true
	case events.ActionStart, events.ActionDestroy:
		delete(o.ids, id)
	}
}

// complete sets OOMKilled in the inspection result of a running container whose id is stored.
func (o *ooms) complete(in *container.InspectResponse) {
	if in.State == nil || in.State.Status != container.StateRunning {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ids[in.ID] {
		in.State.OOMKilled = true
	}
}
