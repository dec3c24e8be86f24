package compose

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/moby/moby/api/types/container"

	"github.com/persys/compute/agent/driver"
)

// part is the observed state of one container of a stack.
type part struct {
	driver.Observed
	service string
	// endless means that the engine restarts the container after every exit, so the container is never
	// reported as completed.
	endless bool
	// once means that the restart policy in the Compose file does not start the container again after exit
	// code 0.
	once bool
	// final means that the restart policy in the Compose file does not start the container again, whatever its exit
	// code was.
	final  bool
	needs  types.DependsOnConfig // services that this one depends on
	status container.ContainerState
}

// exited reports whether the container has run and ended.
func (p *part) exited() bool { return p.status == container.StateExited && !p.FinishedAt.IsZero() }

// keepsEnded reports whether the restart policy of a service does not start its container again after exit code
// 0 (once) and after any exit code (final). policy is that of the Compose file, and engine the one of the
// container. With on-failure, the engine restarts the container as often as the policy allows, so a container
// that has ended stays ended. In an exclusive stack the agent restarts containers instead of the engine: there
// the containers have no policy in the engine, and on-failure is never final.
func keepsEnded(policy string, engine container.RestartPolicyMode) (once, final bool) {
	switch policy {
	case types.RestartPolicyNo:
		return true, true
	case types.RestartPolicyOnFailure:
		return true, engine == container.RestartPolicyOnFailure
	}
	return false, false
}

// List implements driver.Driver.
func (d *Driver) List(ctx context.Context) ([]driver.Observed, error) {
	all, err := d.containers(ctx)
	if err != nil {
		return nil, err
	}
	type key struct {
		id      driver.ID
		project string
	}
	groups := map[key][]member{}
	for _, m := range all {
		if id, ownership := d.of(m.Labels); ownership == driver.Owned || ownership == driver.Claimed {
			groups[key{id, m.project}] = append(groups[key{id, m.project}], m)
		}
	}
	parts := make(map[string]*part, len(all))
	var items []container.Summary
	for _, members := range groups {
		for _, m := range members {
			parts[m.ID] = &part{service: m.service, needs: m.dependencies()}
			items = append(items, m.Summary)
		}
	}
	err = d.eng.InspectAll(ctx, items, func(i int, full container.InspectResponse, o driver.Observed) {
		p := parts[items[i].ID]
		p.Observed = o
		if full.State != nil {
			p.status = full.State.Status
		}
		if full.HostConfig != nil {
			policy := full.HostConfig.RestartPolicy.Name
			p.endless = policy == container.RestartPolicyAlways || policy == container.RestartPolicyUnlessStopped
			p.once, p.final = keepsEnded(items[i].Labels[driver.LabelRestart], policy)
		}
	})
	if err != nil {
		return nil, err
	}
	kept := make(map[string]bool, len(parts))
	for id := range parts {
		kept[id] = true
	}
	d.eng.KeepTails(kept)
	byID := map[driver.ID]driver.Observed{}
	for k, members := range groups {
		rec, err := d.recordOf(k.project)
		if err != nil {
			return nil, &driver.Error{Class: driver.ClassOf(err), Op: "list", Err: err}
		}
		var there []*part
		var seen []member
		for _, m := range members {
			if p := parts[m.ID]; p.RuntimeID != "" {
				there, seen = append(there, p), append(seen, m)
			}
		}
		if len(there) == 0 {
			continue
		}
		o := combine(k.id, k.project, there, rec)
		o.Content = d.contentOf(rec, seen)
		if o.Content == "" {
			// Without a content label, the content is unknown. Clear the revision too, because otherwise the
			// agent would derive the content from the revision.
			o.Revision = ""
		}
		_, ownership := d.of(seen[0].Labels)
		o.Owned = ownership == driver.Owned
		if other, dup := byID[k.id]; !dup || other.Content == "" && o.Content != "" {
			byID[k.id] = o
		}
	}
	out := slices.Collect(maps.Values(byID))
	slices.SortFunc(out, func(a, b driver.Observed) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return out, nil
}

// contentOf returns the content (hash of the specification) of the stack as a whole. It returns "" if the
// record is marked as incomplete or a container is missing.
func (d *Driver) contentOf(rec *record, members []member) string {
	if len(members) == 0 {
		return ""
	}
	have := map[string]int{}
	content := members[0].Labels[driver.LabelContent]
	for _, m := range members {
		if m.State != container.StateDead && m.State != container.StateRemoving {
			have[m.service]++
		}
		if m.Labels[driver.LabelContent] != content {
			content = ""
		}
	}
	if rec == nil {
		return content
	}
	if !rec.Complete || string(rec.Workload) != members[0].Labels[driver.LabelWorkload] {
		return ""
	}
	for service, count := range rec.Services {
		if have[service] != count {
			return ""
		}
	}
	return rec.Content
}

// combine merges the observations of a stack's containers into one. The first line that applies sets the
// state.
//
//	a container restarts or is being removed              Pending
//	a container failed, or stopped while others run       Failed, with the exit code of that container
//	a container cannot be inspected                       Unknown
//	some run, and the others ended with exit code 0       Running
//	none runs                                             Stopped; completed if no restart policy starts any again
func combine(id driver.ID, project string, parts []*part, rec *record) driver.Observed {
	slices.SortFunc(parts, func(a, b *part) int {
		return cmp.Or(strings.Compare(a.service, b.service), strings.Compare(a.Name, b.Name))
	})
	first := parts[0]
	o := driver.Observed{
		ID: id, Revision: first.Revision, Generation: first.Generation, ClusterID: first.ClusterID, NodeID: first.NodeID,
		Name: project, Labels: first.Labels,
		Metadata: map[string]string{"compose.project": project},
	}
	if rec != nil && rec.Complete {
		o.Revision = rec.Revision
		if g, err := driver.ParseGeneration(rec.Generation); err == nil {
			o.Generation = g
		}
		if o.Labels[driver.LabelManaged] != "" && o.Labels[driver.LabelContent] == "" { // a container that a Compose command created without our content label
			o.Labels = maps.Clone(o.Labels)
			o.Labels[driver.LabelContent], o.Labels[driver.LabelRevision] = rec.Content, rec.Revision
			o.Labels[driver.LabelGeneration] = rec.Generation
		}
	}
	if rec != nil && rec.Commit != "" {
		o.Metadata["compose.git_commit"], o.Metadata["compose.git_repo"] = rec.Commit, driver.Bound(rec.Repository)
	}
	sum := sha256.New()
	o.Parts = slices.Sorted(runtimeIDs(parts))
	for _, rid := range o.Parts {
		fmt.Fprintln(sum, rid)
	}
	o.RuntimeID = project + "/" + hex.EncodeToString(sum.Sum(nil)[:6])
	running := 0
	for _, p := range parts {
		if p.State == driver.Running {
			running++
		}
		o.Health = o.Health.Worse(p.Health)
		o.RestartCount += p.RestartCount
		o.Addresses = append(o.Addresses, p.Addresses...)
		o.Ports = append(o.Ports, p.Ports...)
		if p.StartedAt.After(o.StartedAt) {
			o.StartedAt = p.StartedAt
		}
		if p.FinishedAt.After(o.FinishedAt) {
			o.FinishedAt, o.ExitCode, o.Output = p.FinishedAt, p.ExitCode, p.Output
		}
	}
	slices.Sort(o.Addresses)
	o.Addresses = slices.Compact(o.Addresses)
	texts := services(parts)
	for service, text := range texts {
		o.Metadata["compose.service."+service] = driver.Bound(text)
	}
	o.Metadata["compose.services"] = fmt.Sprintf("%d of %d containers run", running, len(parts))
	var line []string
	for _, service := range slices.Sorted(maps.Keys(texts)) {
		line = append(line, service+": "+texts[service])
	}
	if rec != nil && rec.Complete {
		line = append(line, rec.LeftOut...)
	}
	o.Message = driver.Bound(strings.Join(line, "; "))
	var failed, stopped *part
	pending, unknown, paused, completed, keepEnded := false, false, false, true, true
	waits := neverStarted(parts)
	for _, p := range parts {
		completed = completed && p.once && p.State == driver.Stopped && p.exited()
		paused = paused || p.status == container.StatePaused
		switch {
		case p.State == driver.Unknown:
			unknown = true
		case p.State == driver.Pending:
			pending = true
		case p.State == driver.Failed:
			failed = cmp.Or(failed, p)
			keepEnded = keepEnded && p.final && p.exited()
		case running > 0 && p.State == driver.Stopped && (p.endless || p.FinishedAt.IsZero() || p.status == container.StatePaused):
			stopped = cmp.Or(stopped, p)
			keepEnded = keepEnded && waits[p.service]
		}
	}
	if failed == nil && stopped != nil {
		failed, keepEnded = stopped, false
	}
	o.PartlyRunning = failed != nil && (running > 0 || unknown) || running == 0 && !unknown && paused
	switch {
	case pending:
		o.State = driver.Pending
	case failed != nil:
		o.State, o.Class, o.KeepEnded = driver.Failed, cmp.Or(failed.Class, driver.RuntimeError), keepEnded
		o.ExitCode, o.StartedAt, o.FinishedAt, o.Output = failed.ExitCode, failed.StartedAt, failed.FinishedAt, failed.Output
		o.Metadata["failure_reason"], o.Metadata["failure_message"] = string(o.Class), driver.Bound("service "+failed.service+": "+failed.Message)
		if tail := failed.Metadata["container.stderr"]; tail != "" {
			o.Metadata["container.stderr"] = tail
		}
		// The reason of the failure comes first, because lists of workloads show only the beginning
		// of a message.
		o.Message = driver.Bound("service " + failed.service + " " + failed.Message + "; " + o.Message)
	case unknown:
		o.State = driver.Unknown
	case running > 0:
		o.State = driver.Running
	default:
		o.State, o.Completed = driver.Stopped, completed
	}
	return o
}

// neverStarted returns the services that will not start, because a service that they require has ended
// for good without meeting their condition. A service that requires one of these will not start either
// and is in the result too.
func neverStarted(parts []*part) map[string]bool {
	ended, failed, out := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, p := range parts {
		if p.final && p.status == container.StateExited {
			ended[p.service] = true
			failed[p.service] = failed[p.service] || p.ExitCode != 0
		}
	}
	unmet := func(name, condition string) bool {
		switch condition {
		case types.ServiceConditionCompletedSuccessfully:
			return failed[name]
		case types.ServiceConditionHealthy:
			return ended[name]
		}
		return false
	}
	for n := -1; n != len(out); {
		n = len(out)
		for _, p := range parts {
			for name, on := range p.needs {
				if on.Required && (out[name] || unmet(name, on.Condition)) {
					out[p.service] = true
				}
			}
		}
	}
	return out
}

func runtimeIDs(parts []*part) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, p := range parts {
			if !yield(p.RuntimeID) {
				return
			}
		}
	}
}

// services describes the state of each service in a few words. For several containers of a service in the
// same state it gives their number.
func services(parts []*part) map[string]string {
	counts := map[string]map[string]int{}
	for _, p := range parts {
		if counts[p.service] == nil {
			counts[p.service] = map[string]int{}
		}
		counts[p.service][p.Message]++
	}
	out := make(map[string]string, len(counts))
	for service, states := range counts {
		var texts []string
		for _, text := range slices.Sorted(maps.Keys(states)) {
			if n := states[text]; n > 1 {
				text = fmt.Sprintf("%d× %s", n, text)
			}
			texts = append(texts, text)
		}
		out[service] = strings.Join(texts, ", ")
	}
	return out
}

// Events implements driver.Driver.
func (d *Driver) Events(ctx context.Context) (<-chan driver.ID, error) {
	return d.eng.Events(ctx, func(labels map[string]string) bool {
		_, ownership := d.of(labels)
		return ownership == driver.Owned || ownership == driver.Claimed
	})
}
