package docker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/moby/moby/client/pkg/versions"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/moby"
)

// A specification asks for a number of CDI devices of a kind. The driver chooses free ones when it creates the container
// and writes them into a label, so that the label of each container tells which devices it has. No other record exists.

// labelDevices lists the CDI devices of a container, separated by commas.
const labelDevices = driver.LabelPrefix + "devices"

// cdiVersion is the API version of the first engines with CDI, Docker 25.
const cdiVersion = "1.44"

// withDevices calls create with the settings of a container that has its devices. No other container gets devices
// meanwhile.
func (d *Driver) withDevices(ctx context.Context, id driver.ID, want settings, create func(settings) (string, error)) (string, error) {
	if len(want.counted) == 0 {
		return create(want)
	}
	d.choosing.Lock()
	defer d.choosing.Unlock()
	ctx, cancel := d.eng.Call(ctx)
	defer cancel()
	res, err := d.eng.Client.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", labelDevices)})
	if err != nil {
		return "", moby.Classify("list", err)
	}
	holders := map[string]string{}
	for _, item := range res.Items {
		// A former container of the workload has ended before the new one starts, so both may have the same devices.
		if d.of(item.Labels) == driver.Ours && item.Labels[driver.LabelWorkload] == string(id) {
			continue
		}
		for name := range strings.SplitSeq(item.Labels[labelDevices], ",") {
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
	config.Labels[labelDevices] = strings.Join(chosen, ",")
	host.DeviceRequests = append(slices.Clone(host.DeviceRequests), container.DeviceRequest{Driver: "cdi", DeviceIDs: chosen})
	want.config, want.host = &config, &host
	return create(want)
}

// devicesOf returns the names of the devices of a kind: those that the engine reports, or else 0, 1, … as many as the
// configuration of the agent says.
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

// chooseDevices returns the full names of n devices of a kind that have no holder.
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
	text := fmt.Sprintf("resources.devices: needs %d %s, and the node has %d", n, kind, len(names))
	if len(taken) > 0 {
		text += ", in use are " + strings.Join(taken, ", ")
	}
	return nil, driver.Errorf(driver.RuntimeResourceMissing, "create", "%s", text)
}

// lacksCDI returns the error for a container with CDI devices on an engine that has no CDI; nil if the engine has it.
func lacksCDI(counted map[string]int64, version string) error {
	if len(counted) == 0 || !versions.LessThan(version, cdiVersion) {
		return nil
	}
	kind := slices.Sorted(maps.Keys(counted))[0]
	return driver.Errorf(driver.RuntimeResourceMissing, "ensure",
		"resources.devices: %s is a CDI device, and the engine of this node has no CDI (API %s): it needs Docker 25 or newer", kind, version)
}
