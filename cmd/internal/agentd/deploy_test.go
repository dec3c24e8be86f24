package agentd

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/persys/compute/config"
)

// daemonSet holds the fields of the agent's Kubernetes manifest that must agree with the program.
type daemonSet struct {
	Kind string
	Spec struct {
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		Template struct {
			Metadata struct {
				Labels, Annotations map[string]string
			}
			Spec struct {
				HostNetwork bool `yaml:"hostNetwork"`
				HostPID     bool `yaml:"hostPID"`
				Volumes     []struct{ Name string }
				Containers  []struct {
					Image string
					Env   []struct {
						Name, Value string
						ValueFrom   map[string]map[string]string `yaml:"valueFrom"`
					}
					Ports []struct {
						Name          string
						ContainerPort int `yaml:"containerPort"`
						HostPort      int `yaml:"hostPort"`
					}
					LivenessProbe struct {
						HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
					} `yaml:"livenessProbe"`
					VolumeMounts []struct {
						Name      string
						MountPath string `yaml:"mountPath"`
					} `yaml:"volumeMounts"`
				}
			}
		}
	}
}

// The agent's Kubernetes manifest must set only variables that the agent has, to valid values, expose the ports that
// the program listens on, and runs the image that this repository builds.
func TestDaemonSetFitsTheProgram(t *testing.T) {
	raw, err := os.ReadFile("../../../deploy/kubernetes/persys-agent.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var d daemonSet
	if err := yaml.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	pod := d.Spec.Template.Spec
	if d.Kind != "DaemonSet" || len(pod.Containers) != 1 || !pod.HostNetwork || !pod.HostPID {
		t.Fatalf("the manifest has kind %s, %d containers, host network %v, host pids %v; want a DaemonSet with one container in the namespaces of the host", d.Kind, len(pod.Containers), pod.HostNetwork, pod.HostPID)
	}
	for k, v := range d.Spec.Selector.MatchLabels {
		if d.Spec.Template.Metadata.Labels[k] != v {
			t.Errorf("the selector's %s=%s is not a label of the pods", k, v)
		}
	}
	c := pod.Containers[0]
	var cfg Config
	loader, err := config.New(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	var known []string
	for _, s := range loader.Describe() {
		known = append(known, s.Env...)
	}
	set := map[string]string{}
	for _, e := range c.Env {
		if !slices.Contains(known, e.Name) && !slices.Contains(known, strings.TrimSuffix(e.Name, "_FILE")) {
			t.Errorf("the variable %s is not a setting of the agent", e.Name)
		}
		if set[e.Name] = e.Value; e.ValueFrom != nil {
			set[e.Name] = "some-node"
		}
	}
	mounted := func(path string) bool {
		for _, m := range c.VolumeMounts {
			if path == m.MountPath || strings.HasPrefix(path, m.MountPath+"/") {
				return slices.ContainsFunc(pod.Volumes, func(v struct{ Name string }) bool { return v.Name == m.Name })
			}
		}
		return false
	}
	err = loader.Load(config.Sources{
		Environ: func(k string) (string, bool) { v, ok := set[k]; return v, ok },
		ReadFile: func(path string) ([]byte, error) {
			if !mounted(path) {
				t.Errorf("the file %s is not mounted", path)
			}
			return []byte("persys-join-1.abc.def\n"), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.complete(); err != nil {
		t.Error(err)
	}
	if cfg.NodeID != "some-node" || cfg.Join != "persys-join-1.abc.def" || !cfg.TLSEnabled || cfg.Insecure {
		t.Errorf("the settings of the manifest give node name %q, join token %q and TLS %v", cfg.NodeID, cfg.Join, cfg.TLSEnabled)
	}
	for _, path := range []string{cfg.StatePath, cfg.ComposeDir, strings.TrimPrefix(cfg.DockerHost, "unix://"), "/tmp/x"} {
		if !mounted(path) {
			t.Errorf("the path %s is not stored outside of the pod", path)
		}
	}
	ports := map[string]int{}
	for _, p := range c.Ports {
		if ports[p.Name] = p.ContainerPort; p.HostPort != p.ContainerPort {
			t.Errorf("port %s is %d on the host and %d in the container; they must be equal in the host's network", p.Name, p.HostPort, p.ContainerPort)
		}
	}
	if ports["grpc"] != cfg.GRPCPort || ports["http"] != cfg.MetricsPort {
		t.Errorf("the manifest has ports %v, but the agent listens on %d and %d", ports, cfg.GRPCPort, cfg.MetricsPort)
	}
	if g := c.LivenessProbe.HTTPGet; g.Path != "/health" || ports[g.Port] != cfg.MetricsPort {
		t.Errorf("the probe of the manifest uses %+v", g)
	}
	if d.Spec.Template.Metadata.Annotations["prometheus.io/port"] != strconv.Itoa(cfg.MetricsPort) {
		t.Errorf("the manifest's annotations for Prometheus are %v", d.Spec.Template.Metadata.Annotations)
	}
	if _, err := os.Stat("../../../deploy/docker/persys-agent.Dockerfile"); err != nil {
		t.Errorf("the manifest has image %s: %v", c.Image, err)
	}
}

// The agent's systemd unit must not contain a directive that gives the service a mount namespace of its own (such as
// PrivateMounts= of systemd.exec). In such a namespace the container engine would not see the volumes that the agent
// mounts. The unit must set User=: only then does systemd set HOME, and Docker's configuration is in the home folder.
func TestUnitHasNoMountNamespaceAndRunsAsRoot(t *testing.T) {
	raw, err := os.ReadFile("../../../deploy/systemd/persys-agent.service")
	if err != nil {
		t.Fatal(err)
	}
	own := regexp.MustCompile(`(?m)^(Private(Mounts|Tmp|Devices|IPC|Users)|Protect(System|Home|Proc|ProcSubset|Kernel\w+|ControlGroups|Hostname)|DynamicUser|MountFlags|MountAPIVFS|Root\w+|\w+Paths|TemporaryFileSystem)=.*`)
	for _, line := range own.FindAllString(string(raw), -1) {
		t.Error(line)
	}
	if !strings.Contains(string(raw), "\nUser=root\n") {
		t.Error("the unit has no User, so systemd sets no HOME")
	}
}

// A user removes the agent's operating system package, or replaces it by the package with support for virtual
// machines. Exclusive workloads keep running meanwhile. So the fencer (the process that stops them when the node's
// lease ends) must keep running too.
func TestRemovalLeavesTheFencerRunning(t *testing.T) {
	raw, err := os.ReadFile("../../../deploy/packages/prerm")
	if err != nil {
		t.Fatal(err)
	}
	if s := regexp.MustCompile(`(?m)^.*systemctl.*(--now|stop|kill).*persys-fencer.*`).Find(raw); s != nil {
		t.Errorf("the fencer is ended: %s", s)
	}
	if !strings.Contains(string(raw), "cp /lib/systemd/system/persys-fencer.service /run/systemd/system/") {
		t.Error("the fencer would end with the next daemon-reload, because its unit no longer exists")
	}
}
