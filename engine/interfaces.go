package engine

import "regexp"

// insideNames matches the names that container engines, libvirt, LXC and CNI plugins give to their
// interfaces, and the names that agent/overlay gives to the interfaces of networks between nodes.
var insideNames = regexp.MustCompile(`^(docker[0-9]+|docker_gwbridge|podman[0-9]+|br-[0-9a-f]{12}|veth[0-9a-f]{7,}|virbr[0-9]+|vnet[0-9]+|lxcbr[0-9]+|lxdbr[0-9]+|cni[0-9]+|cni-.*|flannel.*|ps[0-9]+|pvx[0-9]+)$`)

// InsideInterface reports whether a network interface of this name connects only containers and virtual machines of its own
// machine. Other machines do not reach its addresses.
func InsideInterface(name string) bool { return insideNames.MatchString(name) }
