package spec

import (
	"fmt"
	"strconv"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
)

// MaxCommand is the largest encoded command, in bytes: one may travel alone up
// to 1 MiB (RULES, "Sizes"), and its head needs a little.
const MaxCommand = 1<<20 - 4<<10

// Prepared is an apply, ready for the log.
type Prepared struct {
	// Command has its body set (PutWorkloads, SetDesired or DeleteWorkload)
	// and no head: request id, epoch and time are the caller's to fill in.
	Command *commandv1.Command
	// IDs are the workloads that it touches, in order: one, or those that
	// count makes.
	IDs []string
	// Content is empty when only the desired state changes.
	Content string
}

// DesiredState reads the contract's word: stopped or stop, deleted or delete,
// in any case; everything else, also nothing, means Running.
func DesiredState(word string) fsm.Desired {
	switch strings.ToLower(strings.TrimSpace(word)) {
	case "stopped", "stop":
		return fsm.DesiredStopped
	case "deleted", "delete":
		return fsm.DesiredDeleted
	}
	return fsm.DesiredRunning
}

// Prepare turns a request into a command: checks and normalises it, computes
// its content, seals its secrets and mints the members of a count. The request
// is not changed. Errors are ErrBlankID, Errors (which name every fault) or
// ErrNoKey; whatever it returns, nothing has happened yet.
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
			// A group of which nothing is left.
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
		// A member is stored as the single workload that it is.
		put.Update = updatePolicy(s.GetUpdate())
		s.Count, s.Group, s.Update, put.GroupOf = 0, id, nil, id
	}
	// Where it belongs is kept by its record, which alone knows when nothing is said.
	namespace := s.Namespace
	s.Namespace = ""
	content, err := contentWith(s, key, image)
	if err != nil {
		return Prepared{}, err
	}
	demand := DemandOf(s) // shared by all members: a command is only read
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
	// Counting exactly costs as much as encoding; far from the limit there is
	// no need.
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

// memberID names the i-th workload of a count, from 0.
func memberID(id string, i int) string { return fmt.Sprintf("%s-%d", id, i) }
