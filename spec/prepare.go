package spec

import (
	"fmt"
	"strconv"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
)

// MaxCommand is the largest encoded body of a command, in bytes. A command with its head may have 1
// MiB (RULES, "Sizes").
const MaxCommand = 1<<20 - 4<<10

// Prepared is an apply that is ready for the log.
type Prepared struct {
	// Command has a body (PutWorkloads, SetDesired or DeleteWorkload). The caller sets its head:
	// request id, epoch and time.
	Command *commandv1.Command
	// IDs are the ids of the workloads in the command: one, or the members of a count.
	IDs []string
	// Content is empty if only the desired state changes.
	Content string
}

// DesiredState reads the word of the contract in any case: stopped or stop, deleted or delete. Any
// other text, also an empty one, means Running.
func DesiredState(word string) fsm.Desired {
	switch strings.ToLower(strings.TrimSpace(word)) {
	case "stopped", "stop":
		return fsm.DesiredStopped
	case "deleted", "delete":
		return fsm.DesiredDeleted
	}
	return fsm.DesiredRunning
}

// Prepare turns a request into a command: it checks and normalises the request, computes its
// content, seals its secrets and makes the members of a count. The request is not changed. Errors
// are ErrBlankID, Errors (with every fault) or ErrNoKey.
func Prepare(req *controlv1.ApplyWorkloadRequest, key Sealer) (Prepared, error) {
	id := strings.TrimSpace(req.GetWorkloadId())
	if id == "" {
		return Prepared{}, ErrBlankID
	}
	faults, image := validate(req)
	if err := faults.asError(); err != nil {
		return Prepared{}, err
	}
	desired := DesiredState(req.GetDesiredState())
	if desired == fsm.DesiredDeleted {
		if n := int(req.GetSpec().GetCount()); n > 0 {
			// A count of 0 deletes all members of the group.
			return Prepared{Command: putCommand(&commandv1.PutWorkloads{GroupOf: id, Namespace: strings.TrimSpace(req.GetSpec().GetNamespace())}), IDs: members(id, n)}, nil
		}
		return Prepared{
			Command: &commandv1.Command{Body: &commandv1.Command_DeleteWorkload{DeleteWorkload: &commandv1.DeleteWorkload{Id: id}}},
			IDs:     []string{id},
		}, nil
	}
	if req.Spec == nil {
		return Prepared{
			Command: &commandv1.Command{Body: &commandv1.Command_SetDesired{SetDesired: &commandv1.SetDesired{Id: id, Desired: string(desired)}}},
			IDs:     []string{id},
		}, nil
	}

	s := req.Spec.CloneVT()
	Normalise(s)
	ids, put := []string{id}, &commandv1.PutWorkloads{}
	if n := int(s.Count); n > 0 {
		ids = members(id, n)
		// A member is stored as a single workload.
		put.Update = updatePolicy(s.GetUpdate())
		s.Count, s.Group, s.Update, put.GroupOf = 0, id, nil, id
	}
	// The namespace is stored in the record. The state machine determines it if the request names
	// none.
	namespace := s.Namespace
	s.Namespace = ""
	content, err := contentWith(s, key, image)
	if err != nil {
		return Prepared{}, err
	}
	demand := DemandOf(s) // shared by all members, because commands are not modified
	size := 0
	for i, member := range ids {
		plain := s
		if i < len(ids)-1 {
			plain = s.CloneVT()
		}
		stored, err := sealInPlace(member, plain, key)
		if err != nil {
			return Prepared{}, err
		}
		if size += len(stored); size > MaxCommand {
			return Prepared{}, tooLarge(len(ids), len(stored)*len(ids))
		}
		put.Workloads = append(put.Workloads, &commandv1.WorkloadPut{
			Id: member, Spec: stored, Content: content, CallerRevision: req.GetRevisionId(),
			Demand: demand, Desired: string(desired), Namespace: namespace,
		})
	}
	cmd := putCommand(put)
	// The exact size costs as much as encoding, so it is computed only near the limit.
	if size > MaxCommand/4 || len(ids) > 1 {
		if n := cmd.SizeVT(); n > MaxCommand {
			return Prepared{}, tooLarge(len(ids), n)
		}
	}
	return Prepared{Command: cmd, IDs: ids, Content: content}, nil
}

func putCommand(put *commandv1.PutWorkloads) *commandv1.Command {
	return &commandv1.Command{Body: &commandv1.Command_PutWorkloads{PutWorkloads: put}}
}

func members(id string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = memberID(id, i)
	}
	return ids
}

func tooLarge(count, size int) error {
	var e Errors
	if count > 1 {
		e.addf("spec.count", strconv.Itoa(count), "makes a command of %d bytes, at most %d: use a smaller count or specification", size, MaxCommand)
	} else {
		e.addf("spec", "", "is %d bytes with its secrets sealed, at most %d", size, MaxCommand)
	}
	return e
}

// memberID returns the id of the i-th workload of a count, from 0.
func memberID(id string, i int) string { return fmt.Sprintf("%s-%d", id, i) }
