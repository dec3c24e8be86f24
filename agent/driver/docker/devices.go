package docker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/moby/moby/client/pkg/versions"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/moby"
)

// A specification asks for a number of CDI devices of a kind. When the driver creates the container, it chooses free
// devices. Which devices are in use is recorded only in the engine: in the settings of its containers.

// cdiVersion is the API version of Docker 25, the first engine that supports CDI.
const cdiVersion = "1.44"

// withDevices chooses free devices, adds them to the settings of a container, and calls create. It holds a
// lock until create returns, so that no other container gets the same devices.
func (d *Driver) withDevices(ctx context.Context, id driver.ID, want settings, create func(settings) (string, error)) (string, error) {
	if len(want.counted) == 0 {
		return create(want)
	}
	d.choosing.Lock()
	defer d.choosing.Unlock()
	ctx, cancel := d.eng.Call(ctx)
	defer cancel()
	res, err := d.eng.Client.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", driver.LabelDevices)})
	if err != nil {
		return "", moby.Classify("list", err)
	}
	holders := map[string]string{}
	for _, item := range res.Items {
		if item.Labels[driver.LabelDevices] == "" {
			continue // one of our containers, without devices
		}
		// The workload's previous container ends before the new one starts, so the new one may get the same
		// devices.
		if d.of(item.Labels) == driver.Owned && item.Labels[driver.LabelWorkload] == string(id) {
			continue
		}
		has, err := d.eng.Client.ContainerInspect(ctx, item.ID, client.ContainerInspectOptions{})
		if cerrdefs.IsNotFound(err) {
			continue // the container was removed after the list
		}
		if err != nil {
			return "", moby.Classify("inspect", err)
		}
		for _, name := range devicesIn(has.Container.HostConfig) {
			holders[name] = nameOf(item)
		}
	}
	var chosen []string
	for _, kind := range slices.Sorted(maps.Keys(want.counted)) {
		names, err := chooseDevices(kind, want.counted[kind], d.devicesOf(ctx, kind), holders)
		if err != nil {
			return "", err
		}
		chosen = append(chosen, names...)
	}
	config, host := *want.config, *want.host
	config.Labels = maps.Clone(config.Labels)
	config.Labels[driver.LabelDevices] = strings.Join(chosen, ",")
	host.DeviceRequests = append(slices.Clone(host.DeviceRequests), container.DeviceRequest{Driver: "cdi", DeviceIDs: chosen})
	want.config, want.host = &config, &host
	return create(want)
}

// devicesIn returns the full names of the CDI devices of a container.
func devicesIn(host *container.HostConfig) (names []string) {
	if host == nil {
		return nil
	}
	for _, r := range host.DeviceRequests {
		if r.Driver == "cdi" {
			names = append(names, r.DeviceIDs...)
		}
	}
	return names
}

// devicesOf returns the names of the devices of a kind, as the engine reports them. If the engine reports none, the names
// are 0, 1, … up to the number in the agent's configuration.
func (d *Driver) devicesOf(ctx context.Context, kind string) []string {
	if names := d.eng.CDIDevices(ctx, kind); len(names) > 0 {
		return names
	}
	var names []string
	for i := range d.opt.Devices[kind] {
		names = append(names, strconv.FormatInt(i, 10))
	}
	return names
}

// chooseDevices returns the full names of n devices of a kind that are free. The map holders has the devices
// in use, each with the name of the container that uses it.
func chooseDevices(kind string, n int64, names []string, holders map[string]string) (chosen []string, err error) {
	var taken []string
	for _, name := range names {
		full := kind + "=" + name
		if by, ok := holders[full]; ok {
			taken = append(taken, fmt.Sprintf("%s by %s", name, by))
		} else if int64(len(chosen)) < n {
			chosen = append(chosen, full)
		}
	}
	if int64(len(chosen)) == n {
		return chosen, nil
	}
	text := fmt.Sprintf("resources.devices: needs %d %s, but the node has %d", n, kind, len(names))
	if len(taken) > 0 {
		text += ", of which are in use: " + strings.Join(taken, ", ")
	}
	return nil, driver.Errorf(driver.RuntimeResourceMissing, "create", "%s", text)
}

// lacksCDI returns an error if a container needs CDI devices and the engine does not support CDI.
func lacksCDI(counted map[string]int64, version string) error {
	if len(counted) == 0 || !versions.LessThan(version, cdiVersion) {
		return nil
	}
	kind := slices.Sorted(maps.Keys(counted))[0]
	return driver.Errorf(driver.RuntimeResourceMissing, "ensure",
		"resources.devices: %s is a CDI device, and the engine of this node has no CDI (API %s): it needs Docker 25 or newer", kind, version)
}
