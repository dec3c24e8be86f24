package compose

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/compose/v5/pkg/api"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/moby"
)

// member is one container of a Compose project, as the engine lists it.
type member struct {
	container.Summary
	project, service string
}

// dependencies returns the services that the member's service depends on. Compose does not write into its
// label which of these dependencies are optional (required: false). So the driver reads the optional ones
// from a label of its own.
func (m member) dependencies() types.DependsOnConfig {
	out := types.DependsOnConfig{}
	optional := strings.Split(m.Labels[driver.LabelOptional], ",")
	for dep := range strings.SplitSeq(m.Labels[api.DependenciesLabel], ",") {
		name, rest, _ := strings.Cut(dep, ":")
		if name == "" {
			continue
		}
		condition, _, _ := strings.Cut(rest, ":")
		// Old versions of Compose write only the service names into the label.
		condition = cmp.Or(condition, types.ServiceConditionStarted)
		out[name] = types.ServiceDependency{Condition: condition, Required: !slices.Contains(optional, name)}
	}
	return out
}

// containers lists the containers on the engine that Compose made for services and that have the given labels.
// It also lists containers of other owners.
func (d *Driver) containers(ctx context.Context, labels ...string) ([]member, error) {
	ctx, cancel := d.eng.Call(ctx)
	defer cancel()
	res, err := d.eng.Client.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", append(labels, api.ProjectLabel)...),
	})
	if err != nil {
		return nil, moby.Classify("list", err)
	}
	out := make([]member, 0, len(res.Items))
	for _, item := range res.Items {
		if item.Labels[api.OneoffLabel] != "True" && !otherKind(item.Labels) {
			out = append(out, member{item, item.Labels[api.ProjectLabel], item.Labels[api.ServiceLabel]})
		}
	}
	return out, nil
}

// otherKind reports whether a container belongs to a workload that is not a Compose stack. Its image may have the labels
// of a Compose project, and containers that earlier versions of the agent made may have such labels from their image.
func otherKind(labels map[string]string) bool {
	return labels[driver.LabelManaged] != "" && labels[driver.LabelKind] != string(driver.Compose)
}

// of returns the owner of a container, network or volume from its labels. Projects of legacy v1 agents do
// not carry our labels and are recognised by their folder.
func (d *Driver) of(labels map[string]string) (driver.ID, driver.Ownership) {
	if labels[driver.LabelManaged] == "" {
		id := driver.ID(labels[api.ProjectLabel])
		if id != "" && d.identity.Owns != nil && labels[api.WorkingDirLabel] == LegacyDir+"/"+string(id) && d.identity.Owns(id) {
			return id, driver.Claimed
		}
		return "", driver.Foreign
	}
	if otherKind(labels) {
		return "", driver.Foreign
	}
	return driver.ID(labels[driver.LabelWorkload]), d.identity.Of(labels)
}

// find returns the containers of a workload, keyed by project name. A workload has one project, or two if a
// change of the project's name was interrupted.
func (d *Driver) find(ctx context.Context, id driver.ID) (map[string][]member, error) {
	all, err := d.containers(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string][]member{}
	for _, m := range all {
		if of, ownership := d.of(m.Labels); of == id && (ownership == driver.Owned || ownership == driver.Claimed) {
			out[m.project] = append(out[m.project], m)
		}
	}
	return out, nil
}

// projectFor returns the name of a workload's Compose project and its containers. If there is no project yet,
// it returns a name that no other project has.
func (d *Driver) projectFor(ctx context.Context, id driver.ID) (string, []member, error) {
	have, err := d.find(ctx, id)
	if err != nil {
		return "", nil, err
	}
	for project, members := range have {
		return project, members, nil
	}
	for _, name := range d.names(id) {
		all, err := d.containers(ctx, api.ProjectLabel+"="+name)
		if err != nil {
			return "", nil, err
		}
		free := true
		for _, m := range all {
			if _, ownership := d.of(m.Labels); ownership == driver.Foreign {
				return "", nil, driver.Errorf(driver.NameConflict, "create",
					"Compose project %q of workload %q is taken by container %s (image %s), which is not ours; remove that project, or use another workload id",
					name, id, moby.Short(m.ID), m.Image)
			}
			free = false // the container belongs to another workload, so this project name is taken
		}
		if free {
			return name, nil, nil
		}
	}
	return "", nil, driver.Errorf(driver.NameConflict, "create",
		"every possible project name of workload %q is used by another agent of the cluster on this engine: %q", id, d.names(id))
}

// takenBackAtMost is the maximum number of attempts of Ensure for one stack when a container disappears
// between the list and its start. The engine may list a new container for a moment and then remove it, if the
// caller of the create request has disconnected. The number is limited because the engine returns the same
// error if a stack refers to a container that never existed.
const takenBackAtMost = 3

// Ensure implements driver.Driver. If the stack is up to date, Ensure makes one call to the engine. Error texts
// of Compose and the engine may repeat their input, so values of the stack's environment are masked in errors.
func (d *Driver) Ensure(ctx context.Context, spec driver.Spec) error {
	err := d.ensure(ctx, spec)
	for range takenBackAtMost {
		if err == nil || !strings.Contains(err.Error(), "No such container") || !moby.Pause(ctx) {
			break
		}
		err = d.ensure(ctx, spec)
	}
	if err != nil && strings.Contains(err.Error(), "is ambiguous") && d.dropTwins(ctx, spec.ID) {
		err = d.ensure(ctx, spec)
	}
	return moby.Masked(moby.MaskFiles(err, spec.Body.GetCompose().GetMemoryFiles()), spec.Body.GetCompose().GetEnv())
}

// dropTwins removes networks of the stack that have the same name as another of its networks, and reports
// whether there were any. The engine accepts duplicate names: if the answer to a create request is lost,
// Compose may create the network again.
func (d *Driver) dropTwins(ctx context.Context, id driver.ID) bool {
	ctx, cancel := d.eng.Call(ctx)
	defer cancel()
	filters := make(client.Filters).Add("label", driver.LabelWorkload+"="+string(id), driver.LabelKind+"="+string(driver.Compose))
	networks, err := d.eng.Client.NetworkList(ctx, client.NetworkListOptions{Filters: filters})
	if err != nil {
		return false
	}
	left := map[string]int{}
	for _, n := range networks.Items {
		left[n.Name]++
	}
	dropped := false
	for _, n := range networks.Items {
		if _, ownership := d.of(n.Labels); ownership != driver.Owned || left[n.Name] < 2 {
			continue
		}
		// The engine refuses to remove a network that a container uses. So only an unused network of the same
		// name is removed.
		if _, err := d.eng.Client.NetworkRemove(ctx, n.ID, client.NetworkRemoveOptions{}); err == nil {
			left[n.Name]--
			dropped = true
		}
	}
	return dropped
}

func (d *Driver) ensure(ctx context.Context, spec driver.Spec) error {
	if err := d.identity.Check(spec); err != nil {
		return err
	}
	if spec.Body.GetCompose() == nil {
		return invalid("spec: the Compose runtime takes compose, got %T (workload %q)", spec.Body.GetSpec(), spec.ID)
	}
	project, members, err := d.projectFor(ctx, spec.ID)
	if err != nil {
		return err
	}
	for _, m := range members {
		_, ownership := d.of(m.Labels)
		if err := driver.CheckNamespace(spec, "Compose project "+project, m.Labels, ownership == driver.Claimed); err != nil {
			return err
		}
	}
	rec, err := d.recordOf(project)
	if err != nil {
		return &driver.Error{Class: driver.ClassOf(err), Op: "ensure", Err: err}
	}
	if services, err := d.stopUnready(ctx, members); len(services) > 0 && rec != nil { // a new order may have interrupted the post_start hooks of these services
		if err := errors.Join(err, d.restarting(project, unique(append(services, rec.Halted...)))); err != nil {
			return err
		}
	}
	current := d.contentOf(rec, members) == spec.Content
	if spec.Legacy && rec == nil {
		current = !slices.ContainsFunc(members, func(m member) bool { return m.Labels[driver.LabelManaged] != "" })
	}
	if len(members) > 0 && current {
		return d.settle(ctx, spec, project, members)
	}
	commit := ""
	if rec != nil && rec.Workload == spec.ID && rec.Content == spec.Content {
		commit = rec.Commit // an unfinished update of this content continues with the commit that it started with
	}
	if want := spec.Body.GetCompose().GetManagedVolumes(); len(want) != len(spec.Volumes) {
		return invalid("compose.managed_volumes: the specification has %d volumes, but the agent has prepared %d", len(want), len(spec.Volumes))
	}
	if rec == nil && len(members) == 0 {
		if err := d.claim(project, spec); err != nil {
			return err
		}
	}
	s, err := d.load(ctx, spec, project, commit)
	if err != nil {
		return err
	}
	if err := d.foreign(ctx, spec, s.project); err != nil {
		return err
	}
	if err := d.pull(ctx, spec.ID, s); err != nil {
		return err
	}
	version, err := d.eng.APIVersion(ctx)
	if err != nil {
		return err
	}
	next := record{
		Workload: spec.ID, ClusterID: spec.ClusterID, NodeID: spec.NodeID, Revision: spec.Revision, Content: spec.Content,
		Generation: spec.Generation.String(), Commit: s.commit, Repository: s.repo, Services: s.expected(),
		LeftOut: leaveOut(s.project, version),
	}
	if err := d.note(project, next); err != nil {
		return err
	}
	failed := d.narrate(ctx, spec.ID, project, needsOf(s.project), func() error { return d.up(ctx, s, spec.Running) })
	if failed != nil && ctx.Err() == nil {
		if _, failed = d.hooksFailed(ctx, project, failed); !driver.StartedOf(failed) {
			return failed
		}
	} else if failed != nil {
		return failed
	}
	if !spec.Running {
		if err := d.halt(ctx, project, driver.OwnGrace); err != nil {
			return err
		}
	}
	if err := errors.Join(d.forget(project, s.commit), d.forgetFiles(project, s.files)); err != nil {
		d.log.Warn("could not remove former files", "workload", string(spec.ID), "error", err)
	}
	next.Complete = true
	return errors.Join(failed, d.note(project, next))
}

// settle starts or stops the existing containers of a stack whose configuration is unchanged, as the desired
// state in its specification demands.
func (d *Driver) settle(ctx context.Context, spec driver.Spec, project string, members []member) error {
	if !spec.Running {
		return d.halt(ctx, project, driver.OwnGrace)
	}
	idle := false
	for _, m := range members {
		switch m.State {
		case container.StateRunning, container.StateRestarting:
		case container.StatePaused:
			callCtx, cancel := d.eng.Call(ctx)
			_, err := d.eng.Client.ContainerUnpause(callCtx, m.ID, client.ContainerUnpauseOptions{})
			cancel()
			if err != nil {
				return moby.Classify("start", err)
			}
		default:
			idle = true
		}
	}
	if !idle {
		return d.restarting(project, nil)
	}
	rec, err := d.recordOf(project)
	if err != nil {
		return &driver.Error{Class: driver.ClassOf(err), Op: "ensure", Err: err}
	}
	var halted []string
	if rec != nil {
		halted = rec.Halted
	}
	done, err := d.completed(ctx, members, halted, spec.Repeats)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(members, func(m member) bool { return !done[m.service] }) {
		return nil
	}
	bounded, cancel := outlive(ctx)
	defer cancel()
	of := needs{}
	for _, m := range members {
		of[m.service] = m.dependencies()
	}
	err = d.narrate(ctx, spec.ID, project, of, func() error { return d.run.start(bounded, project, members, done) })
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		services, failed := d.hooksFailed(ctx, project, classify(err))
		if len(services) == 0 {
			return failed
		}
		return errors.Join(failed, d.restarting(project, unique(append(services, halted...))))
	}
	return d.restarting(project, nil)
}

// restarting stores in the record the services that were stopped for a restart of unhealthy services. The
// next start then includes them, also after a failed start or a restart of the agent. nil means that no such
// start is due. A stack of a legacy v1 agent has no record, and restarting then does nothing: the containers
// have no LabelRestart, so no restart policy keeps them ended.
func (d *Driver) restarting(project string, services []string) error {
	rec, err := d.recordOf(project)
	if err != nil || rec == nil || slices.Equal(rec.Halted, services) {
		return err
	}
	next := *rec
	next.Halted = services
	return d.note(project, next)
}

// completed returns, for each service, whether its containers must stay ended now.
//
//   - A service that other services await with the condition service_completed_successfully runs once: it
//     is not started again after it has ended with success.
//   - If repeats is set, no order asked for the start. Then a service stays ended if its restart policy
//     says so. A service that requires a service which failed for good is not started either.
//
// halted are the services that were stopped for a restart of unhealthy services. They are started
// whatever their restart policies say.
func (d *Driver) completed(ctx context.Context, members []member, halted []string, repeats bool) (map[string]bool, error) {
	out := map[string]bool{}
	var parts []*part
	for _, m := range members {
		stopped := slices.Contains(halted, m.service)
		if stopped || m.Labels[driver.LabelAwaited] == "" && (!repeats || m.Labels[driver.LabelRestart] == "") {
			parts = append(parts, &part{service: m.service, needs: m.dependencies()})
			out[m.service] = false
			continue
		}
		in, err := d.eng.Inspect(ctx, m.ID)
		if err != nil {
			return nil, moby.Classify("start", err)
		}
		p := &part{service: m.service, needs: m.dependencies()}
		ended := false
		if in.State != nil && in.State.Status == container.StateExited {
			var policy container.RestartPolicyMode
			if in.HostConfig != nil {
				policy = in.HostConfig.RestartPolicy.Name
			}
			once, final := keepsEnded(m.Labels[driver.LabelRestart], policy)
			p.status, p.final, p.ExitCode = in.State.Status, final && repeats, in.State.ExitCode
			ended = in.State.ExitCode == 0 && (m.Labels[driver.LabelAwaited] != "" || once && repeats) || p.final
		}
		parts = append(parts, p)
		before, seen := out[m.service]
		out[m.service] = ended && (before || !seen)
	}
	for service := range neverStarted(parts) {
		out[service] = true
	}
	return out, nil
}

// Halt implements driver.Driver.
func (d *Driver) Halt(ctx context.Context, id driver.ID, most time.Duration) error {
	have, err := d.find(ctx, id)
	if err != nil {
		return err
	}
	for project := range have {
		if err := d.halt(ctx, project, max(most, 0)); err != nil {
			return err
		}
	}
	return nil
}

func (d *Driver) halt(ctx context.Context, project string, most time.Duration) error {
	all, err := d.containers(ctx, api.ProjectLabel+"="+project)
	if err != nil {
		return err
	}
	active, grace := false, driver.OwnGrace
	for _, m := range all {
		if m.State != container.StateRunning && m.State != container.StatePaused && m.State != container.StateRestarting {
			continue
		}
		active = true
		if most != driver.OwnGrace && grace != most {
			own, err := d.grace(ctx, m.ID)
			if err != nil {
				return err
			}
			if own > most {
				grace = most
			}
		}
	}
	if !active {
		return nil
	}
	if err := d.run.stop(ctx, project, grace); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return moby.Classify("stop", err)
	}
	return nil
}

// Signal implements driver.Signaler.
func (d *Driver) Signal(ctx context.Context, id driver.ID, service, signal string) error {
	have, err := d.find(ctx, id)
	if err != nil {
		return err
	}
	for _, members := range have {
		for _, m := range members {
			if m.service != service {
				continue
			}
			if err := d.eng.Signal(ctx, m.ID, signal); err != nil {
				return err
			}
		}
	}
	return nil
}

// HaltUnhealthy implements driver.UnhealthyHalter.
func (d *Driver) HaltUnhealthy(ctx context.Context, id driver.ID, most time.Duration) error {
	have, err := d.find(ctx, id)
	if err != nil {
		return err
	}
	for project, members := range have {
		if err := d.haltUnhealthy(ctx, project, members, max(most, 0)); err != nil {
			return err
		}
	}
	return nil
}

func (d *Driver) haltUnhealthy(ctx context.Context, project string, members []member, most time.Duration) error {
	rec, err := d.recordOf(project)
	if err != nil {
		return &driver.Error{Class: driver.ClassOf(err), Op: "stop", Err: err}
	}
	var halted, running []string
	if rec != nil {
		halted = slices.Clone(rec.Halted)
	}
	unhealthy := map[string]container.InspectResponse{}
	for _, m := range members {
		switch m.State {
		case container.StateRunning:
		case container.StateRestarting: // the engine waits before it starts the container again
			running = append(running, m.service)
			continue
		default:
			continue
		}
		in, err := d.eng.Inspect(ctx, m.ID)
		switch {
		case cerrdefs.IsNotFound(err):
			continue
		case err != nil:
			return moby.Classify("stop", err)
		}
		running = append(running, m.service)
		if in.State != nil && in.State.Health != nil && in.State.Health.Status == container.Unhealthy {
			unhealthy[m.ID] = in
			halted = append(halted, m.service)
		}
	}
	if len(halted) == 0 {
		// Only the health check in the specification fails; the engine reports no service as unhealthy.
		// So it is not known which service is the cause, and all running services are restarted.
		if err := d.restarting(project, unique(running)); err != nil {
			return err
		}
		return d.halt(ctx, project, most)
	}
	if err := d.restarting(project, unique(halted)); err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(unhealthy)) {
		if err := d.eng.Stop(ctx, unhealthy[id], moby.StopGrace(unhealthy[id], most, engineGrace)); err != nil {
			return err
		}
	}
	return nil
}

func unique(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}

// engineGrace is the engine's default grace period.
const engineGrace = 10 * time.Second

// grace returns the grace period of a container: how long it may take to stop before it is killed.
func (d *Driver) grace(ctx context.Context, container string) (time.Duration, error) {
	in, err := d.eng.Inspect(ctx, container)
	if err != nil && !cerrdefs.IsNotFound(err) {
		return 0, moby.Classify("stop", err)
	}
	return moby.StopGrace(in, driver.OwnGrace, engineGrace), nil
}

// Remove implements driver.Driver. It removes containers, networks, volumes and the project's folder.
func (d *Driver) Remove(ctx context.Context, id driver.ID) error { return d.remove(ctx, id, true) }

// Leave implements driver.Leaver. The stack moves to another node, which cannot use the resources of this
// engine. Leave keeps the stack's volumes, and those files of an inline stack that it uses like volumes, and
// removes all other resources.
func (d *Driver) Leave(ctx context.Context, id driver.ID, volumes bool) error {
	return d.remove(ctx, id, !volumes)
}

// RemoveInstance implements driver.VolumeOwner. It keeps the volumes that the Compose file names, and the files of an
// inline stack that it uses like volumes. The containers are removed one by one, because only the removal of a container
// tells the engine to remove its volumes without a name.
func (d *Driver) RemoveInstance(ctx context.Context, id driver.ID) error {
	projects, err := d.traces(ctx, id)
	if err != nil {
		return err
	}
	for _, project := range projects {
		if err := d.halt(ctx, project, driver.OwnGrace); err != nil {
			return err
		}
		all, err := d.containers(ctx, api.ProjectLabel+"="+project)
		if err != nil {
			return err
		}
		for _, m := range all {
			call, cancel := d.eng.Call(ctx)
			_, err := d.eng.Client.ContainerRemove(call, m.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
			cancel()
			if err != nil && !cerrdefs.IsNotFound(err) {
				return moby.Classify("remove", err)
			}
		}
	}
	return d.remove(ctx, id, false)
}

func (d *Driver) remove(ctx context.Context, id driver.ID, volumes bool) error {
	projects, err := d.traces(ctx, id)
	if err != nil {
		return err
	}
	for _, project := range projects {
		if err := d.run.down(ctx, project, volumes); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if cerrdefs.IsNotFound(err) || errors.Is(err, api.ErrNotFound) {
				continue
			}
			return moby.Classify("remove", err)
		}
	}
	// Remove networks, volumes and the folder of a project even if it has no containers, for example because
	// the stack never started.
	if err := d.sweep(ctx, id, volumes); err != nil {
		return err
	}
	for _, project := range append(projects, d.names(id)...) {
		rec, err := d.recordOf(project)
		if err != nil {
			return &driver.Error{Class: driver.ClassOf(err), Op: "remove", Err: err}
		}
		if rec == nil && !slices.Contains(projects, project) || rec != nil && rec.Workload != id {
			continue
		}
		if err := d.erase(project, id, volumes); err != nil {
			return &driver.Error{Class: driver.ClassOf(err), Op: "remove", Err: err}
		}
	}
	return nil
}

// traces returns the names of the Compose projects that contain containers of a workload. It fails if one of
// these projects also has a container of another owner.
func (d *Driver) traces(ctx context.Context, id driver.ID) ([]string, error) {
	have, err := d.find(ctx, id)
	if err != nil {
		return nil, err
	}
	var out []string
	for project := range have {
		all, err := d.containers(ctx, api.ProjectLabel+"="+project)
		if err != nil {
			return nil, err
		}
		for _, m := range all {
			if of, _ := d.of(m.Labels); of != id {
				return nil, driver.Errorf(driver.InvalidConfiguration, "remove",
					"Compose project %q of workload %q has a container %s that is not ours; remove that container first", project, id, moby.Short(m.ID))
			}
		}
		out = append(out, project)
	}
	slices.Sort(out)
	return out, nil
}

// sweep removes the networks with the workload's labels and, if volumes is set, the volumes with these
// labels.
func (d *Driver) sweep(ctx context.Context, id driver.ID, volumes bool) error {
	ctx, cancel := d.eng.Call(ctx)
	defer cancel()
	filters := make(client.Filters).Add("label", driver.LabelWorkload+"="+string(id), driver.LabelKind+"="+string(driver.Compose))
	networks, err := d.eng.Client.NetworkList(ctx, client.NetworkListOptions{Filters: filters})
	if err != nil {
		return moby.Classify("remove", err)
	}
	for _, n := range networks.Items {
		if _, ownership := d.of(n.Labels); ownership != driver.Owned {
			continue
		}
		_, err := d.eng.Client.NetworkRemove(ctx, n.ID, client.NetworkRemoveOptions{})
		if err != nil && !cerrdefs.IsNotFound(err) && !d.leftToOthers(ctx, id, "network", n.ID, n.Name) {
			return moby.Classify("remove", err)
		}
	}
	if !volumes {
		return nil
	}
	there, err := d.volumes(ctx, id)
	if err != nil {
		return err
	}
	for _, v := range there {
		_, err := d.eng.Client.VolumeRemove(ctx, v.Name, client.VolumeRemoveOptions{})
		if err != nil && !cerrdefs.IsNotFound(err) && !d.leftToOthers(ctx, id, "volume", v.Name, v.Name) {
			return moby.Classify("remove", err)
		}
	}
	return nil
}

// leftToOthers reports whether the engine refused to remove a network or volume only because containers of
// other workloads use it. The delete of the stack does not wait for those containers.
func (d *Driver) leftToOthers(ctx context.Context, id driver.ID, kind, ref, name string) bool {
	by, err := d.users(ctx, kind, ref)
	if err != nil || len(by) == 0 {
		return false
	}
	var names []string
	for _, c := range by {
		if of, ownership := d.of(c.Labels); of == id && (ownership == driver.Owned || ownership == driver.Claimed) {
			return false
		}
		names = append(names, strings.TrimPrefix(strings.Join(c.Names, " "), "/"))
	}
	d.log.Warn("a "+kind+" of a deleted stack stays, because other containers use it", "workload", string(id), kind, name, "containers", names)
	return true
}

// users returns the containers of any owner that use a network or volume.
func (d *Driver) users(ctx context.Context, kind, ref string) ([]container.Summary, error) {
	ctx, cancel := d.eng.Call(ctx)
	defer cancel()
	res, err := d.eng.Client.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add(kind, ref)})
	if err != nil {
		return nil, moby.Classify("list", err)
	}
	return res.Items, nil
}
