package rpc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/policy"
	"github.com/persys/compute/policy/asks"
	"github.com/persys/compute/spec"
	"github.com/persys/compute/stack"
	stackfiles "github.com/persys/compute/stack/bundle"
	"github.com/persys/compute/stack/service"
)

// loadedStack is a loaded Compose project.
type loadedStack struct {
	*types.Project
	files []string // paths of the files that came with the request
}

// loadStack loads the inline Compose stack of a request in the same way as the agent does later. The result is nil if
// the stack is in a Git repository, which only nodes read, or if this scheduler loads no stacks. Errors in the stack
// are returned as spec.Errors. strict is Source.Strict of package stack.
func (s *Server) loadStack(ctx context.Context, req *controlv1.ApplyWorkloadRequest, strict bool) (*loadedStack, error) {
	id, c := strings.TrimSpace(req.GetWorkloadId()), req.GetSpec().GetCompose()
	text := spec.InlineStack(c)
	if text == "" || s.cfg.Stacks == nil {
		return nil, nil
	}
	file, files, came := spec.MainFile(c), map[string][]byte{}, []string(nil)
	if len(req.GetFiles()) > 0 {
		beside, err := stackfiles.Unpack(req.GetFiles())
		if err != nil {
			return nil, spec.Errors{{Field: "files", Rule: err.Error()}}
		}
		for _, f := range beside {
			files[f.Path] = f.Data
			came = append(came, f.Path)
		}
	}
	files[file] = []byte(text) // set this last, because a file sent with the request may have the same path
	p, err := s.cfg.Stacks.Load(ctx, stack.Source{
		Project: stack.ProjectName(id), Env: c.GetEnv(), Compose: []string{file}, Files: files,
		MaxStopGrace: policy.MaxStopGrace, Job: spec.IsJob(req.GetSpec()), Strict: strict,
	})
	var faults stack.Faults
	var busy *stack.Busy
	switch {
	case errors.As(err, &faults):
		var out spec.Errors
		for _, f := range faults {
			if f.File == file {
				f.File = ""
			}
			out = append(out, spec.FieldError{Field: "spec.compose.inline_yaml", Rule: f.String()})
		}
		return nil, out
	case errors.As(err, &busy):
		return nil, &Error{Op: "check workload " + id, Kind: KindBusy, Err: busy}
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, &Error{Op: "check workload " + id, Kind: KindUnavailable, Err: fmt.Errorf("loading the Compose stack: %w", err)}
	}
	return &loadedStack{p, came}, nil
}

// judgeStack adds to the workloads in a command what the loaded stack needs from its node: the asks (rights and
// resources such as host paths, which policies check), the host ports and the local data. The surge members of an
// update get the same. p is the stack that loadStack returned. The text of the Compose file alone does not show these:
// services may be in other files (`include`, `extends`), and port numbers and paths in variables.
func judgeStack(req *controlv1.ApplyWorkloadRequest, p *loadedStack, put *commandv1.PutWorkloads) (err error) {
	c := req.GetSpec().GetCompose()
	if c == nil {
		return nil
	}
	list := []policy.Ask{{Rule: policy.RuleUnreadStack, Value: "a stack from Git", Field: "compose"}}
	var managed []string
	if p != nil {
		for _, v := range c.GetManagedVolumes() {
			managed = append(managed, strings.TrimSpace(v.GetName()))
		}
		if list, err = asks.Project(p.Project, managed, nil); err != nil {
			return spec.Errors{{Field: "spec.compose", Rule: err.Error()}}
		}
	}
	for _, w := range slices.Concat(put.GetWorkloads(), put.GetSurge()) {
		if p != nil {
			spec.SetPorts(w.Demand, portsIn(p.Project))
			if err = spec.SetStackData(w.Demand, req.GetSpec(), dataIn(p, managed)); err != nil {
				return err
			}
		}
		w.Demand.Asks = nil
		for _, a := range list {
			w.Demand.Asks = append(w.Demand.Asks, fsm.AskPB(a))
		}
	}
	return nil
}

// stackIn returns what the planner needs to know about a loaded stack: the sums of the CPU and memory limits of all
// its containers, and the secrets and configs of the cluster that its services use.
func stackIn(p *loadedStack) (*spec.LoadedStack, error) {
	out := &spec.LoadedStack{Objects: objectsIn(p.Project), Devices: devicesIn(p.Project)}
	if n := len(out.Objects); n > fsm.MaxObjectUses {
		return nil, spec.Errors{{Field: "spec.compose.inline_yaml", Rule: fmt.Sprintf("its services have %d external secrets and configs, at most %d", n, fsm.MaxObjectUses)}}
	}
	for _, s := range p.Services {
		cpu, memory := service.CPULimit(s), service.MemoryLimit(s)
		copies := float64(s.GetScale())
		out.CPU = int64(min(float64(out.CPU)+float64(cpu)*copies, maxLimits))
		out.Memory = int64(min(float64(out.Memory)+math.Ceil(float64(memory)/(1<<20))*copies, maxLimits))
	}
	return out, nil
}

// devicesIn returns the devices that the services of a loaded stack ask for.
func devicesIn(p *types.Project) spec.StackDevices {
	out := spec.StackDevices{}
	for _, s := range p.Services {
		copies := int64(s.GetScale())
		if copies == 0 {
			continue
		}
		for _, d := range s.Devices {
			out.Named(d.Source)
		}
		requests := s.Gpus
		if s.Deploy != nil && s.Deploy.Resources.Reservations != nil {
			requests = slices.Concat(requests, s.Deploy.Resources.Reservations.Devices)
		}
		for _, r := range requests {
			driver := r.Driver
			if len(r.Capabilities) > 0 && !slices.Contains(r.Capabilities, "gpu") {
				driver = "cdi" // the request is not for GPUs: only devices that it names by a CDI kind count
			}
			out.Requested(driver, int64(r.Count), r.IDs, copies)
		}
	}
	return out
}

// objectsIn returns the secrets and configs of the cluster that the services of a loaded stack use.
func objectsIn(p *types.Project) (out []*controlv1.StackObject) {
	for _, x := range stack.Externals(p) {
		on, _ := service.ParseOnChange(x.OnChange) // the loader has checked it
		out = append(out, &controlv1.StackObject{Service: x.Service, Kind: x.Kind, File: &controlv1.ObjectFile{
			Source: x.Name, Target: x.Target, Uid: x.UID, Gid: x.GID, Mode: new(x.Mode), OnChange: on.String(),
		}})
	}
	return out
}

// maxLimits is the maximum value of a stack's sum of CPU limits and of memory limits, so that the sums cannot
// overflow.
const maxLimits = 1 << 40

// portsIn returns the host ports of a loaded stack, with their names.
func portsIn(p *types.Project) (out []*controlv1.Port) {
	for _, name := range slices.Sorted(maps.Keys(p.Services)) {
		s := p.Services[name]
		if s.GetScale() == 0 {
			continue
		}
		for _, port := range s.Ports {
			if port.Protocol == "sctp" {
				continue // skip other protocols: a demand has only TCP and UDP ports
			}
			out = append(out, spec.ComposePort(port.Published, int32(port.Target), port.Protocol, port.Name, port.HostIP)...)
			if len(out) >= maxStackPorts {
				return out
			}
		}
	}
	return out
}

// maxStackPorts is the maximum number of host ports of one stack.
const maxStackPorts = 1024

// dataIn returns the data that a loaded stack keeps on its node: volumes of the engine and folders of the stack, such
// as "volume db". It leaves out managed volumes, volumes on a file server, and files that came with the request: every
// node can make a copy of such files.
func dataIn(p *loadedStack, managed []string) (out []string) {
	copied := func(folder string) bool {
		return slices.ContainsFunc(p.files, func(f string) bool { return folder == "." || f == folder || strings.HasPrefix(f, folder+"/") })
	}
	for _, name := range slices.Sorted(maps.Keys(p.Services)) {
		for _, m := range p.Services[name].Volumes {
			switch m.Type {
			case types.VolumeTypeVolume:
				v := p.Volumes[m.Source]
				switch {
				case m.Source == "":
					out = append(out, "unnamed volume at "+m.Target)
				case spec.OnFileServer(v.DriverOpts["type"]), slices.Contains(managed, m.Source), slices.Contains(managed, v.Name):
				default:
					out = append(out, "volume "+m.Source)
				}
			case types.VolumeTypeBind:
				folder, own := strings.CutPrefix(path.Clean(m.Source)+"/", stack.Root+"/")
				folder = path.Clean(folder)
				if own && !m.ReadOnly && !copied(folder) {
					out = append(out, "folder ./"+folder)
				}
			}
		}
	}
	return out
}
