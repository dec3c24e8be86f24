package compose_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/compose"
	"github.com/persys/compute/agent/driver/moby/mobytest"
	agentv1 "github.com/persys/compute/api/agent/v1"
)

// TestStacksOfOtherNamespacesAreOutOfReach: one namespace has a running stack, and a deleted stack whose
// volume was kept. A stack of another namespace cannot use the resources of these two stacks.
func TestStacksOfOtherNamespacesAreOutOfReach(t *testing.T) {
	b := newBench(t)
	stack := func(more string) string {
		return "services:\n  app:\n    image: " + b.image + "\n    command: [serve]\n" + more
	}
	left := b.spec("left", inline(stack("    volumes: [data:/data]\nvolumes: {data: {}}\n")))
	left.Body.Namespace = "bank"
	b.ensure(left)
	if err := b.d.Leave(b.ctx, left.ID, true); err != nil {
		t.Fatal(err)
	}
	volume, _, _ := strings.Cut(b.volumes(left.ID)[0], " ")
	t.Cleanup(func() { _, _ = b.cli.VolumeRemove(b.ctx, volume, client.VolumeRemoveOptions{Force: true}) })
	runs := b.spec("runs", inline(stack("")))
	runs.Body.Namespace = "bank"
	b.ensure(runs)
	container := b.containerOf(runs.ID, "app")
	network := compose.ProjectName(runs.ID) + "_default"

	for _, c := range []struct{ name, id, namespace, text, want string }{
		{"a stack with the id of the deleted stack cannot use the kept volume", "left", "shop", "    volumes: [data:/data]\nvolumes: {data: {}}\n", "volume " + volume},
		{"a stack of the default namespace with the id of the deleted stack cannot use the kept volume", "left", "", "    volumes: [data:/data]\nvolumes: {data: {}}\n", "volume " + volume},
		{"a stack cannot use the kept volume by a volume of the same name", "taker", "shop", "    volumes: [vol:/data]\nvolumes: {vol: {name: " + volume + "}}\n", "volume " + volume},
		{"a stack cannot use the kept volume as an external volume", "taker", "shop", "    volumes: [vol:/data]\nvolumes: {vol: {external: true, name: " + volume + "}}\n", "volume " + volume},
		{"a stack cannot have the id of the running stack", "runs", "shop", "", "Compose project"},
		{"a stack cannot use the running stack's network", "taker", "shop", "    networks: [n]\nnetworks: {n: {external: true, name: " + network + "}}\n", "network " + network},
		{"a stack cannot use the volumes of the running stack's container", "taker", "shop", "    volumes_from: [\"container:" + container + ":ro\"]\n", "container " + container},
		{"a stack cannot use the network of the running stack's container", "taker", "", "    network_mode: \"container:" + container + "\"\n", "container " + container},
		{"a stack cannot see the processes of the running stack's container", "taker", "shop", "    pid: \"container:" + container + "\"\n", "container " + container},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := b.spec(c.id, inline(stack(c.text)))
			spec.Body.Namespace, spec.Content = c.namespace, "c1:taker"
			err := b.d.Ensure(b.ctx, spec)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `belongs to namespace "bank"`) || driver.ClassOf(err) != driver.InvalidConfiguration {
				t.Errorf("Ensure returned %v (class %s), want an error of class INVALID_CONFIGURATION that names the other namespace", err, driver.ClassOf(err))
			}
			// The refused stack is deleted. Resources of the other namespace must remain.
			if other, err := b.d.Foreign(b.ctx, spec.ID, c.namespace); err != nil || other != (c.id != "taker") {
				t.Errorf("Foreign of the refused stack returned %v, error %v; want true only for an id of namespace bank", other, err)
			}
		})
	}
	if other, err := b.d.Foreign(b.ctx, left.ID, "bank"); err != nil || other {
		t.Errorf("Foreign for a stack and its own namespace returned %v, error %v; want false", other, err)
	}
	again := b.spec("left", inline(stack("    volumes: [data:/data]\nvolumes: {data: {}}\n")))
	again.Body.Namespace = "bank"
	b.ensure(again) // a stack of the volume's own namespace may use the volume again
	if got := b.volumes(left.ID); len(got) != 1 {
		t.Errorf("volumes: %q", got)
	}
	if err := b.d.Remove(b.ctx, again.ID); err != nil {
		t.Fatal(err)
	}
	if err := b.d.Remove(b.ctx, runs.ID); err != nil {
		t.Fatal(err)
	}
}

// TestLabelsOfMountsGiveNoOwnership: a Compose file sets, on an unnamed volume, a named volume and a
// network, the labels that the agent gives to the resources of another stack. The driver does not treat
// these resources as those of the other stack.
func TestLabelsOfMountsGiveNoOwnership(t *testing.T) {
	b := newBench(t)
	forged := driver.Labels(driver.Compose, driver.Spec{ID: "vault", ClusterID: b.cluster, NodeID: "node-a", Body: &agentv1.WorkloadSpec{Namespace: "shop"}}, nil)
	forged["com.docker.compose.project"] = compose.ProjectName("vault")
	var labels []string
	for _, key := range slices.Sorted(maps.Keys(forged)) {
		labels = append(labels, fmt.Sprintf("%s: %q", key, forged[key]))
	}
	set := "labels: {" + strings.Join(labels, ", ") + "}"
	spec := b.spec("forger", inline("services:\n  app:\n    image: "+b.image+"\n    command: [serve]\n    networks: [n]\n    volumes:\n"+
		"    - {type: volume, target: /x, volume: {"+set+"}}\n    - data:/d\nvolumes: {data: {"+set+"}}\nnetworks: {n: {"+set+"}}\n"))
	spec.Body.Namespace = "shop"
	b.ensure(spec)
	if other, err := b.d.Foreign(b.ctx, "vault", "bank"); err != nil || other {
		t.Errorf("Foreign returned %v (error %v) for a workload that is not on the node, want false", other, err)
	}
	if got := b.volumes("vault"); len(got) != 0 {
		t.Errorf("the volumes %q with forged labels are listed as those of another workload", got)
	}
	if err := b.d.Remove(b.ctx, spec.ID); err != nil {
		t.Fatal(err)
	}
}

// A container of another workload has all labels that Compose would give to the containers of a stack. The
// driver deploys the stack in spite of this container, and does not treat the container as one of the stack.
func TestLabelsOfAContainerMakeItNoPartOfAStack(t *testing.T) {
	b := newBench(t)
	spec := b.spec("claimed", inline("services:\n  app:\n    image: "+b.image+"\n    command: [serve]\n"))
	labels := driver.Labels(driver.Container, driver.Spec{ID: "other", ClusterID: b.cluster, NodeID: "node-a"}, nil)
	for key, value := range map[string]string{
		"project": compose.ProjectName(spec.ID), "service": "app", "container-number": "2", "oneoff": "False", "config-hash": "0",
	} {
		labels["com.docker.compose."+key] = value
	}
	res, err := b.cli.ContainerCreate(b.ctx, client.ContainerCreateOptions{Config: &container.Config{Image: b.image, Cmd: []string{"serve"}, Labels: labels}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = b.cli.ContainerRemove(context.Background(), res.ID, client.ContainerRemoveOptions{Force: true})
	})
	if _, err := b.cli.ContainerStart(b.ctx, res.ID, client.ContainerStartOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"start", func() error { return b.d.Ensure(b.ctx, spec) }},
		{"stop", func() error { return b.d.Halt(b.ctx, spec.ID, 0) }},
		{"start again", func() error { return b.d.Ensure(b.ctx, spec) }},
		{"remove", func() error { return b.d.Remove(b.ctx, spec.ID) }},
	} {
		if err := step.do(); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
		in, err := b.cli.ContainerInspect(b.ctx, res.ID, client.ContainerInspectOptions{})
		if err != nil || !in.Container.State.Running {
			t.Fatalf("after %s of the stack, the other workload's container was removed or stopped: %v", step.name, err)
		}
	}
}

// TestATakenContainerNameNamesItsHolder: if another workload has a container with the name that a stack
// needs, the error names that workload.
func TestATakenContainerNameNamesItsHolder(t *testing.T) {
	b := newBench(t)
	name := "held" + b.run
	text := "services: {app: {image: IMAGE, container_name: " + name + "}}"
	first := b.spec("holder", b.yaml(text))
	b.ensure(first)
	err := b.d.Ensure(b.ctx, b.spec("second", b.yaml(text)))
	want := "the container name " + name + " of service app is used by workload " + string(first.ID)
	if driver.ClassOf(err) != driver.NameConflict || !strings.Contains(err.Error(), want) {
		t.Errorf("Ensure returned %v, want an error with %q", err, want)
	}
}

// TestLabelsOfAnImageGiveNoOwnership: a container of a stack has the labels that the agent gives it, also if its image
// has other values for them.
func TestLabelsOfAnImageGiveNoOwnership(t *testing.T) {
	eachWay(t, func(t *testing.T, way string, b *bench) {
		ref := "persys/forged-" + b.run + ":1"
		keys := []string{"own", driver.LabelWorkload, driver.LabelNamespace, driver.LabelJob, driver.LabelDevices, driver.LabelRestart, driver.LabelAwaited,
			driver.LabelOptional, driver.LabelContent, driver.LabelRevision, driver.LabelGeneration,
			"com.docker.compose.project", "com.docker.compose.service", "com.docker.compose.container-number", "com.docker.compose.oneoff"}
		mobytest.Forge(t, b.cli, b.probe, ref, keys...)
		spec := b.spec("image-"+way, inline("services: {app: {image: '"+ref+"', command: [serve]}}"))
		b.ensure(spec)
		res, err := b.cli.ContainerInspect(b.ctx, b.containerOf(spec.ID, "app"), client.ContainerInspectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		labels := res.Container.Config.Labels
		for _, key := range keys {
			if (labels[key] == "forged") != (key == "own") {
				t.Errorf("the container of the stack has the label %s=%q of its image, want the value of the agent", key, labels[key])
			}
		}
		if o := b.observed(spec.ID); o.Content != spec.Content || o.Revision != spec.Revision || o.Generation != spec.Generation {
			t.Errorf("the stack is observed as %+v, want the content, revision and generation of its specification", o)
		}
	})
}
