package spec

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
)

// MaxCommand is the maximum size of an encoded body of a command, in bytes. With its head, a command may have
// 1 MiB (docs/RULES.md, "Sizes").
const MaxCommand = 1<<20 - 4<<10

// Prepared is the result of Prepare: the log command for a request, with the ids and the content hash.
type Prepared struct {
	// Command has a body (PutWorkloads, SetDesired or DeleteWorkload). Its head (request id, epoch and time) is not
	// set yet.
	Command *commandv1.Command
	// IDs are the ids of the workloads in the command: one workload, or the members that `count` creates.
	IDs []string
	// Content is the content hash of the specification; empty if only the desired state changes.
	Content string
}

// DesiredState converts a word of the contract to a desired state, in any case: "stopped" or "stop",
// "deleted" or "delete". Any other text, including an empty one, means Running.
func DesiredState(word string) fsm.Desired {
	switch strings.ToLower(strings.TrimSpace(word)) {
	case "stopped", "stop":
		return fsm.DesiredStopped
	case "deleted", "delete":
		return fsm.DesiredDeleted
	}
	return fsm.DesiredRunning
}

// Prepare turns a request into a command: it checks and normalises the request, computes its content hash,
// seals its secrets and makes the members that `count` asks for. The request is not changed. It returns
// ErrBlankID, Errors (with every fault) or ErrNoKey.
func Prepare(req *controlv1.ApplyWorkloadRequest, key Sealer) (Prepared, error) {
	return PrepareWith(req, key, Defaults{})
}

// Defaults are the resources of a container or a stack that sets none, in millicores and MiB; 0 means no
// default.
type Defaults struct {
	CPU, Memory int64
	// Stack loads an inline Compose stack. If it is nil, or returns nil, the limits of the services are read from the
	// text of the Compose file. Limits that are variables or in included files are then not found.
	Stack func() (*LoadedStack, error)
	// Cluster is the cluster id. Agents derive the Ethernet addresses of virtual machines from it. Empty means
	// that the addresses are unknown.
	Cluster string
	// Members is the present number of members of the group if the specification has an autoscaler; nil if there
	// is no such group.
	Members *int
}

// LoadedStack holds the properties of a loaded Compose stack that its workload needs.
type LoadedStack struct {
	// CPU and Memory are the sums of the limits of its services, in millicores and MiB; 0 = no limit.
	CPU, Memory int64
	// Devices are the devices that its services ask for.
	Devices StackDevices
	// Objects are the secrets and configs of the namespace that its services use.
	Objects []*controlv1.StackObject
}

// stack returns the loaded stack of a workload; nil for a stack from Git and for workloads of other types.
func (d Defaults) stack(s *controlv1.WorkloadSpec) (*LoadedStack, error) {
	if d.Stack == nil || s.GetType() != TypeCompose || isGit(s.GetCompose()) {
		return nil, nil
	}
	out, err := d.Stack()
	if out != nil {
		s.GetCompose().Objects = out.Objects
	}
	return out, err
}

// into adds the default resources d to the normalised specification of a workload. loaded is
// the loaded stack; nil for other workloads.
func (d Defaults) into(id string, s *controlv1.WorkloadSpec, loaded *LoadedStack) {
	if d.CPU == 0 && d.Memory == 0 || s.GetType() == TypeVM {
		return
	}
	has := demandWith(id, s, loaded) // the demand of a stack already includes the limits of its services
	if has.GetCpuMillicores() == 0 {
		s.Resources.CpuMillicores = d.CPU
	}
	if has.GetMemoryMib() == 0 {
		s.Resources.MemoryMb = d.Memory
	}
}

// demandWith returns the demand of a workload (the part that the planner reads). For a loaded Compose stack (loaded is
// not nil), the CPU and memory are the sums of its limits.
func demandWith(id string, s *controlv1.WorkloadSpec, loaded *LoadedStack) *commandv1.Demand {
	d := DemandOf(id, s)
	if loaded != nil {
		d.CpuMillicores = cmp.Or(s.GetResources().GetCpuMillicores(), loaded.CPU)
		d.MemoryMib = cmp.Or(s.GetResources().GetMemoryMb(), loaded.Memory)
		d.Devices = devicesDemand(s.GetResources(), loaded.Devices)
	}
	return d
}

// PrepareWith is like Prepare. In addition, it gives default resources to a container or stack that sets none. The argument
// defaults contains these resources, the loaded stack, and other facts that the checks need.
func PrepareWith(req *controlv1.ApplyWorkloadRequest, key Sealer, defaults Defaults) (Prepared, error) {
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
		if n, _ := membersOf(req.GetSpec()); n > 0 {
			// A deleted group keeps no member, so the command lists none.
			return Prepared{
				Command: putCommand(&commandv1.PutWorkloads{GroupOf: id, ListDeleted: true, Namespace: strings.TrimSpace(req.GetSpec().GetNamespace())}),
				IDs:     members(id, n),
			}, nil
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
	for _, at := range markers(s) {
		faults.noStored("spec." + at)
	}
	if err := faults.asError(); err != nil {
		return Prepared{}, err
	}
	Normalise(s)
	loaded, err := defaults.stack(s)
	if err != nil {
		return Prepared{}, err
	}
	defaults.into(id, s, loaded)
	if err := needsCPU(s); err != nil {
		return Prepared{}, err
	}
	if s.GetCron().GetSuspend() {
		desired, s.Cron.Suspend = fsm.DesiredStopped, false // the record has the desired state; a suspended cron is stopped
	}
	ids, put := []string{id}, &commandv1.PutWorkloads{}
	surge := 0 // the last ids are those of the surge members
	if n, ok := membersOf(s); ok {
		if s.Autoscale != nil {
			n = sized(n, s.Autoscale, defaults.Members)
			put.IfMembers = new(uint32(0))
			if defaults.Members != nil {
				put.IfMembers = new(uint32(*defaults.Members))
			}
		}
		if n == 0 {
			// With `count: 0` no member runs, and the stopped first member keeps the specification.
			n, desired = 1, fsm.DesiredStopped
		}
		ids = members(id, n)
		// Each member is stored as a workload of its own, without `count`.
		put.Update, put.ListDeleted = updatePolicy(s.GetUpdate()), true
		if desired == fsm.DesiredRunning && s.Update != nil {
			surge = fsm.SurgeCount(put.GetUpdate(), n)
			ids = members(id, n+surge)
		}
		s.Count, s.Group, s.Update, put.GroupOf = nil, id, nil, id
		if s.Job != nil {
			s.Job.Completions = nil
		}
	}
	if OnEveryNode(s) {
		put.Update = systemUpdate(s)
		s.Group, s.Update = "", nil
	}
	// The namespace is stored in the workload's record, not in the specification. If the request names none,
	// the state machine determines it.
	namespace := s.Namespace
	s.Namespace = ""
	files, err := withFiles(s.GetCompose(), req.GetFiles(), key)
	if err != nil {
		return Prepared{}, err
	}
	if files != nil {
		put.Bundles = []*commandv1.Bundle{files}
	}
	content, err := contentWith(s, key, image)
	if err != nil {
		return Prepared{}, err
	}
	demand := demandWith(id, s, loaded) // all members may share one demand, because commands are never modified
	if loaded != nil {
		var faults Errors
		if faults.kindsOfDevices("spec.compose.inline_yaml", demand.GetDevices()); len(faults) > 0 {
			return Prepared{}, faults
		}
	}
	size := len(files.GetData())
	own, extra := ids[:len(ids)-surge], demand
	if surge > 0 {
		extra = demand.CloneVT()
		extra.Surge = true
	}
	for i, member := range ids {
		plain := s
		if i < len(ids)-1 {
			plain = s.CloneVT()
		}
		if s.GetType() == TypeVM {
			if member != id {
				demand = DemandOf(member, plain) // the paths of a member's disks may contain its id
			}
			demand.MacAddresses = guestMACs(defaults.Cluster, member, plain)
		}
		stored, err := sealInPlace(member, plain, key)
		if err != nil {
			return Prepared{}, err
		}
		if size += len(stored); size > MaxCommand {
			return Prepared{}, tooLarge(len(ids), len(stored)*len(ids)+len(files.GetData()))
		}
		p := &commandv1.WorkloadPut{
			Id: member, Spec: stored, Content: content, CallerRevision: req.GetRevisionId(),
			Demand: demand, Desired: string(desired), Namespace: namespace, DiscardData: req.GetDiscardData(),
			MaxAttempts: maxAttempts(plain),
			Bundle:      files.GetDigest(),
			Objects:     objectUses(s),
			Update:      put.GetUpdate(),
		}
		if i < len(own) {
			put.Workloads = append(put.Workloads, p)
		} else {
			p.Demand = extra
			put.Surge = append(put.Surge, p)
		}
	}
	cmd := putCommand(put)
	// The exact size takes as long to compute as the encoding, so it is computed only near the limit.
	if size > MaxCommand/4 || len(ids) > 1 || s.Autoscale != nil {
		n := cmd.SizeVT()
		if n > MaxCommand {
			return Prepared{}, tooLarge(len(ids), n)
		}
		if full := n / len(ids) * int(s.GetAutoscale().GetMax()); full > MaxCommand {
			return Prepared{}, maxTooLarge(s.GetAutoscale(), full)
		}
	}
	return Prepared{Command: cmd, IDs: own, Content: content}, nil
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
		e.addf("spec", "", "is %d bytes with its secrets and files sealed, at most %d", size, MaxCommand)
	}
	return e
}

// maxTooLarge is the error for an autoscaler whose max is too high: a command with so many members would exceed the
// size limit, so that no apply could change the group any more.
func maxTooLarge(a *controlv1.Autoscale, size int) error {
	var e Errors
	e.addf("spec.autoscale.max", strconv.Itoa(int(a.GetMax())), "makes a command of %d bytes when the group has so many members, at most %d: use a smaller max or specification", size, MaxCommand)
	return e
}

// memberID returns the id of member number i of a group, counted from 0.
func memberID(id string, i int) string { return fmt.Sprintf("%s-%d", id, i) }
