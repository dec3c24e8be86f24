package spec

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/fsm/rollout"
	"github.com/persys/compute/pki"
)

// Reapply returns the request that applies a workload again. Its secrets are the marker pki.Redacted, which stands for the
// stored values (see Keep). update is the update strategy of a system workload; zero for other workloads.
func Reapply(w *fsm.Workload, stored []byte, update rollout.Policy) (*controlv1.ApplyWorkloadRequest, error) {
	s := &controlv1.WorkloadSpec{}
	if err := s.UnmarshalVT(stored); err != nil {
		return nil, fmt.Errorf("workload %s: stored specification: %w", w.ID, err)
	}
	s = Redact(s)
	s.Namespace = w.Namespace
	if _, hidden := s.Metadata[MetadataVMSpec]; hidden {
		s.Workload = nil // it is only a copy for views
	}
	if c := s.GetCompose(); c != nil {
		c.Files, c.Bundle, c.Objects = nil, "", nil // Keep adds the files
	}
	desired := w.Desired
	if IsCron(s) && s.GetCron() != nil && desired == fsm.DesiredStopped {
		s.Cron.Suspend, desired = true, fsm.DesiredRunning
	}
	if OnEveryNode(s) && !proto.Equal(update.PB(), systemUpdate(&controlv1.WorkloadSpec{Kind: KindSystem})) {
		s.Update = UpdateStrategy(update)
	}
	out := &controlv1.ApplyWorkloadRequest{WorkloadId: w.ID, Spec: s, RevisionId: w.CallerRevision}
	if desired != fsm.DesiredRunning {
		out.DesiredState = strings.ToLower(string(desired))
	}
	return out, nil
}

// ReapplyGroup returns the request that applies a group with a count again. members are its members, at
// least one, and stored is the specification of the first one.
func ReapplyGroup(group string, members []*fsm.Workload, stored []byte, update rollout.Policy) (*controlv1.ApplyWorkloadRequest, error) {
	out, err := Reapply(members[0], stored, rollout.Policy{})
	if err != nil {
		return nil, err
	}
	s := out.Spec
	out.WorkloadId, s.Group, s.Update = group, "", UpdateStrategy(update)
	n := int32(fsm.Count(members))
	switch {
	case IsJob(s):
		if s.Job == nil {
			s.Job = &controlv1.JobSpec{}
		}
		s.Job.Completions = new(int32(len(members)))
	case s.Autoscale == nil:
		s.Count = &n
	}
	if out.DesiredState = ""; n > 0 && !IsJob(s) && allStopped(members) {
		out.DesiredState = "stopped"
	}
	return out, nil
}

func allStopped(members []*fsm.Workload) bool {
	for _, w := range members {
		if w.Desired != fsm.DesiredStopped {
			return false
		}
	}
	return true
}

// UpdateStrategy returns the update strategy of a rollout as a specification has it; nil for none.
func UpdateStrategy(p rollout.Policy) *controlv1.UpdateStrategy {
	if p == (rollout.Policy{}) {
		return nil
	}
	b := p.PB()
	return &controlv1.UpdateStrategy{
		MaxParallel: b.GetMaxParallel(), AutoRevert: b.GetAutoRevert(), Order: updateOrder(b.GetStartFirst()), Canary: b.GetCanary(),
		MinHealthyTimeSeconds: int32(b.GetMinHealthy() / int64(time.Second)), HealthyDeadlineSeconds: int32(b.GetHealthyDeadline() / int64(time.Second)),
	}
}

// KeepsSecrets reports whether a specification has the marker pki.Redacted in place of a secret.
func KeepsSecrets(s *controlv1.WorkloadSpec) bool { return len(markers(s)) > 0 }

// KeepsComposeFile reports whether a specification has the marker in place of its Compose file.
func KeepsComposeFile(s *controlv1.WorkloadSpec) bool {
	return pki.IsRedacted(s.GetCompose().GetInlineYaml())
}

// markers returns the paths of the secrets that are the marker pki.Redacted.
func markers(s *controlv1.WorkloadSpec) (paths []string) {
	// No error is possible: the function never returns one. Values are not changed, so s is not either.
	_ = secrets(s, func(path, value string) (string, error) {
		if pki.IsRedacted(value) {
			paths = append(paths, path)
		}
		return value, nil
	})
	return paths
}

// Keep returns a request with the stored values of those secrets that are the marker pki.Redacted. stored is the
// present specification of the workload with readable secrets; nil if there is none. Keep returns Errors that name each
// field without a stored value.
func Keep(req *controlv1.ApplyWorkloadRequest, stored *controlv1.WorkloadSpec) (*controlv1.ApplyWorkloadRequest, error) {
	have := map[string]string{}
	// secrets writes back each value that the function returns, here the same value.
	_ = secrets(stored, func(path, value string) (string, error) {
		have[path] = value
		return value, nil
	})
	was, _, at := splitGit(stored.GetCompose().GetGitRepo())
	now, _, to := splitGit(strings.TrimSpace(req.GetSpec().GetCompose().GetGitRepo()))
	var e Errors
	out := req.CloneVT()
	_ = secrets(out.Spec, func(path, value string) (string, error) {
		if !pki.IsRedacted(value) {
			return value, nil
		}
		kept, ok := have[path]
		switch {
		case path == "compose.git_repo" && ok && (was != now || at != to):
			e.add("spec."+path, "has the marker "+pki.Redacted+" in place of credentials, which are stored for another URL: give the real credentials", "")
		case !ok:
			e.noStored("spec." + path)
		}
		return kept, nil
	})
	return out, e.asError()
}

// noStored adds the error for a marker for which there is no stored value.
func (e *Errors) noStored(at string) {
	e.add(at, "is the marker "+pki.Redacted+", which keeps the stored value, and this workload has none there: give the real value", "")
}
