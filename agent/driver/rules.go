package driver

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/persys/compute/policy"
	"github.com/persys/compute/policy/asks"
)

// Rules limit the rights of one workload on its machine. A driver checks these rules before it creates an
// instance. An existing instance is not checked again.
type Rules struct {
	// Policies are the policies that apply to the workload. Each policy must allow all resources of the
	// machine that the workload needs, such as host folders (the code calls them asks).
	Policies []Rule
	// Private are files and folders of the agent. A policy that forbids privileged containers also
	// forbids mounts of these paths or of folders that contain them.
	Private []string
	// Protected are data folders of schedulers. Usual are the folders in which schedulers usually store their
	// data; each is protected only if it exists. A mount of such a folder, or of a folder above it, is
	// refused, unless Open lists the data folder.
	Protected, Usual []string
	Open             []policy.HostPath
	// CPU in millicores, Memory in MiB and Disk in GiB are the resources that the scheduler reserved for the
	// workload.
	CPU, Memory, Disk int64
}

// Rule is one policy, and the advice to the user with which the error ends if the policy refuses a workload.
type Rule struct {
	*policy.Policy
	Next string // the next step for the user, at the end of an error
}

// Pids returns the process limit of a container whose specification has none: DefaultPids, or the lowest max_pids of the
// workload's policies if that is lower.
func (s Spec) Pids() int64 {
	pids := int64(DefaultPids)
	if s.Rules != nil {
		for _, p := range s.Rules.Policies {
			if p.MaxPids > 0 {
				pids = min(pids, p.MaxPids)
			}
		}
	}
	return pids
}

// maxNamed is the maximum number of violated policy rules that an error names.
const maxNamed = 3

// Judge returns an error of class InvalidSpecification if the rules forbid a resource of the machine that
// the workload needs; asked lists these resources. It resolves symbolic links in paths first. engine
// holds the socket and the data folder of the driver's engine.
func (s Spec) Judge(kind Kind, asked []policy.Ask, engine []string) error {
	r := s.Rules
	if r == nil {
		return nil
	}
	asked = slices.Clone(asked)
	written := make(map[string]string, len(asked)) // for each field whose path has symbolic links: the path as the specification has it
	var paths []policy.Ask
	for i, a := range asked {
		switch {
		case a.Rule == policy.RuleHostPath, a.Rule == policy.RuleHostPathRead:
		case a.Rule == policy.RuleDisk && path.IsAbs(a.Value):
		default:
			continue
		}
		at := asks.Links(policy.Clean(a.Value))
		if at != policy.Clean(a.Value) {
			written[a.Field] = a.Value
		}
		asked[i].Value = at
		paths = append(paths, asked[i])
	}
	w := policy.Workload{Kind: string(kind), CPU: r.CPU, Memory: r.Memory, Disk: r.Disk, Asks: asked}
	for _, p := range r.Policies {
		bad := policy.Judge(followed(p.Policy), w)
		for _, a := range paths {
			if slices.ContainsFunc(bad, func(v policy.Violation) bool { return v.Field == a.Field }) {
				continue
			}
			v := policy.Violation{Policy: p.Name, Field: a.Field, Value: a.Value}
			if to := policy.Reaches(a.Value, followedAll(engine)); to != "" && !p.EngineSocket {
				v.Rule, v.Allows = policy.RuleEngineSocket, policy.RootBy(to)
			} else if to := policy.Reaches(a.Value, followedAll(r.Private)); to != "" && !p.Privileged {
				v.Rule, v.Allows = policy.RuleProtected, "it reaches "+to+", which belongs to the agent"
			} else {
				continue
			}
			bad = append(bad, v)
		}
		if len(bad) > 0 {
			return refused(bad, written, p.Next)
		}
	}
	var bad []policy.Violation
	for _, a := range paths {
		if to := r.protected(a); to != "" {
			bad = append(bad, policy.Violation{Rule: policy.RuleProtected, Field: a.Field, Value: a.Value, Allows: "it reaches " + to + ", the data of a scheduler"})
		}
	}
	if len(bad) > 0 {
		return refused(bad, written, "run it on a node without a scheduler, or name the folder itself in host_paths of the node's PERSYS_POLICY")
	}
	return nil
}

// protected returns the data folder of a scheduler that the workload could access through the mount a. It
// returns "" if there is none, or if Open lists that folder.
func (r *Rules) protected(a policy.Ask) string {
	for i, p := range append(r.Protected[:len(r.Protected):len(r.Protected)], r.Usual...) {
		at := asks.Links(policy.Clean(p))
		if policy.Reaches(a.Value, []string{at}) == "" {
			continue
		}
		if _, err := os.Lstat(at); i >= len(r.Protected) && errors.Is(err, fs.ErrNotExist) {
			continue // the usual data folder of schedulers does not exist, so no scheduler uses it
		}
		open := slices.ContainsFunc(r.Open, func(h policy.HostPath) bool {
			return asks.Links(h.Path) == at && (!h.ReadOnly || a.Rule == policy.RuleHostPathRead)
		})
		if !open {
			return p
		}
	}
	return ""
}

func refused(bad []policy.Violation, written map[string]string, next string) error {
	for i, v := range bad {
		if value, ok := written[v.Field]; ok {
			bad[i].Value, bad[i].Allows = value, "it leads to "+v.Value+"; "+v.Allows
		}
	}
	text := strings.ReplaceAll(policy.Text(bad[:min(len(bad), maxNamed)]), "\n", "; ")
	return Errorf(InvalidSpecification, "policy", "%s; %s", text, next)
}

// followed returns a copy of a policy with the symbolic links in its host paths resolved on this machine.
// Judge resolves the paths of the workload in the same way, so the two can be compared.
func followed(p *policy.Policy) *policy.Policy {
	out := *p
	out.HostPaths = slices.Clone(p.HostPaths)
	for i, h := range out.HostPaths {
		out.HostPaths[i].Path = asks.Links(h.Path)
	}
	out.Disks = slices.Clone(p.Disks)
	for i, d := range out.Disks {
		if cut := strings.LastIndexByte(d, '/'); path.IsAbs(d) {
			out.Disks[i] = strings.TrimSuffix(asks.Links(d[:cut+1]), "/") + d[cut:]
		}
	}
	return &out
}

func followedAll(paths []string) []string {
	out := make([]string, len(paths))
	for i, p := range paths {
		out[i] = asks.Links(policy.Clean(p))
	}
	return out
}
