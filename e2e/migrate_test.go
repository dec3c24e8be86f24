package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	moby "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	bolt "go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/persys/compute/agent/driver"
	"github.com/persys/compute/agent/driver/compose"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// legacyNode is a machine as legacy v1 peers left it: the records of their scheduler in etcd, the state
// file of their agent, a container with a managed volume, and a stack with a named volume
// (contract/state-etcd.md; contract/semantics.md, section 12).
//
// The records differ from what runs on the machine, as those of real legacy schedulers do. The scheduler's
// record names a revision that was never sent to the agent, and labels that only the scheduler knows. The
// record of web does not contain its volume, and has an outdated status.
type legacyNode struct {
	*testing.T
	cli       *client.Client
	image     string
	web, shop string            // ids of the workloads
	ids       map[string]string // containers by workload
	data      string            // folder with the data of the volume of workload web
}

const legacyYAML = "services: {api: {image: %q, volumes: [\"data:/data\"]%s}}\nvolumes: {data: {}}\n"

func newLegacyNode(t *testing.T, image string) *legacyNode {
	t.Helper()
	cli := got[*client.Client](t)(client.New(client.FromEnv))
	t.Cleanup(func() { _ = cli.Close() })
	run := strconv.FormatInt(time.Now().UnixNano()%1e9, 36)
	n := &legacyNode{T: t, cli: cli, image: image, web: "web-" + run, shop: "shop-" + run, ids: map[string]string{}, data: filepath.Join(t.TempDir(), "volumes", "data")}
	must(t, os.MkdirAll(n.data, 0o755))
	must(t, os.WriteFile(filepath.Join(n.data, "f"), []byte("content of web"), 0o644))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, label := range []string{driver.LabelWorkload + "=" + n.web, "com.docker.compose.project=" + n.shop} {
			all, err := cli.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", label)})
			if err != nil {
				t.Error(err)
			}
			for _, c := range all.Items {
				_, _ = cli.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true})
			}
		}
		_, _ = cli.VolumeRemove(ctx, n.shop+"_data", client.VolumeRemoveOptions{Force: true})
		nets, _ := cli.NetworkList(ctx, client.NetworkListOptions{Filters: make(client.Filters).Add("label", "com.docker.compose.project="+n.shop)})
		for _, net := range nets.Items {
			_, _ = cli.NetworkRemove(ctx, net.ID, client.NetworkRemoveOptions{})
		}
	})
	got[client.VolumeCreateResult](t)(cli.VolumeCreate(t.Context(), client.VolumeCreateOptions{Name: n.shop + "_data", Labels: map[string]string{
		"com.docker.compose.project": n.shop, "com.docker.compose.volume": "data", "com.docker.compose.version": "2.20.0",
	}}))
	n.run(n.web, n.web, map[string]string{driver.LabelManaged: "true", driver.LabelWorkload: n.web, driver.LabelRevision: "rev-7", "last_action": "Created"}, n.data+":/data")
	n.run(n.shop, n.shop+"-api-1", map[string]string{
		"com.docker.compose.project": n.shop, "com.docker.compose.service": "api", "com.docker.compose.container-number": "1", "com.docker.compose.oneoff": "False",
		"com.docker.compose.project.working_dir": compose.LegacyDir + "/" + n.shop, "com.docker.compose.config-hash": "0",
		"com.docker.compose.project.config_files": compose.LegacyDir + "/" + n.shop + "/docker-compose.yml",
	}, n.shop+"_data:/data")
	var tape bytes.Buffer
	tw := tar.NewWriter(&tape)
	must(t, tw.WriteHeader(&tar.Header{Name: "f", Mode: 0o644, Size: int64(len("content of shop"))}))
	_, err := tw.Write([]byte("content of shop"))
	must(t, errors.Join(err, tw.Close()))
	_, err = cli.CopyToContainer(t.Context(), n.ids[n.shop], client.CopyToContainerOptions{DestinationPath: "/data", Content: &tape})
	must(t, err)
	return n
}

func (n *legacyNode) run(id, name string, labels map[string]string, bind string) {
	n.Helper()
	res := got[client.ContainerCreateResult](n.T)(n.cli.ContainerCreate(n.Context(), client.ContainerCreateOptions{
		Name: name, Config: &moby.Config{Image: n.image, Labels: labels}, HostConfig: &moby.HostConfig{Binds: []string{bind}},
	}))
	_, err := n.cli.ContainerStart(n.Context(), res.ID, client.ContainerStartOptions{})
	must(n.T, err)
	n.ids[id] = res.ID
}

// etcd writes the records of the legacy v1 scheduler into an etcd.
func (n *legacyNode) etcd(kv *clientv3.Client, endpoint string) {
	n.Helper()
	const unset = `"0001-01-01T00:00:00Z"`
	yaml := got[[]byte](n.T)(json.Marshal(fmt.Sprintf(legacyYAML, n.image, "")))
	for k, v := range map[string]string{
		"/nodes/node-a": `{"nodeId":"node-a","ipAddress":"127.0.0.1","status":"Ready","timestamp":"2026-01-02T03:04:05Z","totalCpu":16,"totalMemory":65536,
			"lastHeartbeat":"2026-01-02T03:04:05Z","statusUpdatedAt":"2026-01-02T03:04:05Z","labels":{"scheduler_shard":"genesis"},"agentPort":50051,"agentEndpoint":"` + endpoint + `","supportedWorkloadTypes":["container","compose"]}`,
		"/workloads-spec/" + n.web: `{"id":"` + n.web + `","name":"` + n.web + `","type":"container","revisionId":"rev-9","image":"` + n.image + `","resources":{"cpu_usage":0.1,"memory_usage":64},
			"desiredState":"Running","labels":{"team":"blue"},"createdAt":` + unset + `}`,
		"/workloads-status/" + n.web: `{"id":"` + n.web + `","status":"Scheduled","metadata":{"created_at":"2026-01-02T03:04:05Z","last_action":"DesiredStateUpdated","lastApplyRevision":"rev-8","note":"blue"},
			"retry":{"attempts":0,"maxAttempts":5,"nextRetryAt":` + unset + `},"statusInfo":{"actualState":"Failed","lastUpdated":"2026-01-02T03:04:05Z"}}`,
		"/assignments/" + n.web: `{"workloadId":"` + n.web + `","nodeId":"node-a","reason":"scheduled","createdAt":"2026-01-02T03:04:05Z"}`,
		"/workloads/" + n.shop: `{"id":"` + n.shop + `","name":"` + n.shop + `","type":"compose","revisionId":"rev-9","assignedNode":"node-a","nodeId":"node-a","composeYaml":` + string(yaml) + `,
			"resources":{"cpu_usage":0.1,"memory_usage":64},"status":"Running","desiredState":"Running","createdAt":"2026-01-02T03:04:05Z","metadata":{"last_action":"NoopUpdate"},
			"retry":{"attempts":0,"maxAttempts":5,"nextRetryAt":` + unset + `},"statusInfo":{"actualState":"Running","lastUpdated":"2026-01-02T03:04:05Z"}}`,
	} {
		_, err := kv.Put(n.Context(), k, v)
		must(n.T, err)
	}
}

// stateFile writes the state file that the legacy v1 agent of this node would have left.
func (n *legacyNode) stateFile(path string) {
	n.Helper()
	must(n.T, os.MkdirAll(filepath.Dir(path), 0o700))
	db := got[*bolt.DB](n.T)(bolt.Open(path, 0o600, nil))
	defer db.Close()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	record := func(bucket, key string, v map[string]any) {
		v["created_at"], v["updated_at"] = at, at
		raw := got[[]byte](n.T)(json.Marshal(v))
		must(n.T, db.Update(func(tx *bolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte(bucket))
			return errors.Join(err, b.Put([]byte(key), raw))
		}))
	}
	for id, spec := range map[string]map[string]any{
		n.web: {"image": n.image, "labels": map[string]string{"last_action": "Created"},
			"managed_volumes": []any{map[string]any{"name": "data", "driver": "local", "mount_path": "/data"}}},
		n.shop: {"project_name": n.shop, "compose_yaml": fmt.Sprintf(legacyYAML, n.image, "")},
	} {
		kind := map[string]string{n.web: "container", n.shop: "compose"}[id]
		record("workloads", id, map[string]any{"id": id, "type": kind, "revision_id": "rev-7", "desired_state": "running", "spec": spec})
		record("status", id, map[string]any{"id": id, "type": kind, "revision_id": "rev-7", "desired_state": "running", "actual_state": "running", "message": ""})
	}
	record("volumes", "local:data", map[string]any{"id": "local:data", "name": "data", "driver": "local", "size_gb": 0, "device": "", "stage_path": n.data})
	record("attachments", "local:data:"+n.web, map[string]any{"id": "local:data:" + n.web, "volume_id": "local:data", "workload_id": n.web, "mount_path": "/data", "read_only": false, "stage_path": n.data})
}

// now returns the ids of the containers of a workload with their start times. If this list does not change,
// no container was restarted or recreated.
func (n *legacyNode) now(id string) (out []string) {
	n.Helper()
	label := driver.LabelWorkload + "=" + id
	if id == n.shop {
		label = "com.docker.compose.project=" + id
	}
	all := got[client.ContainerListResult](n.T)(n.cli.ContainerList(n.Context(), client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", label)}))
	for _, c := range all.Items {
		in := got[client.ContainerInspectResult](n.T)(n.cli.ContainerInspect(n.Context(), c.ID, client.ContainerInspectOptions{}))
		out = append(out, c.ID+" "+in.Container.State.StartedAt)
	}
	return out
}

// content returns the content of the file that the test has written into the volume of the stack.
func (n *legacyNode) content() string {
	n.Helper()
	id, _, _ := strings.Cut(n.now(n.shop)[0], " ")
	res := got[client.CopyFromContainerResult](n.T)(n.cli.CopyFromContainer(n.Context(), id, client.CopyFromContainerOptions{SourcePath: "/data/f"}))
	defer res.Content.Close()
	tr := tar.NewReader(res.Content)
	_, err := tr.Next()
	must(n.T, err)
	return string(got[[]byte](n.T)(io.ReadAll(tr)))
}

// TestMigrationTouchesNothing follows docs/guides/migrate.md: the schedulers of this version import the
// etcd of legacy v1 schedulers, and the agent of this version takes over the machine of a legacy v1 agent,
// once with the state file of that agent and once without. No workload is restarted and no volume is
// deleted until a person changes a specification.
func TestMigrationTouchesNothing(t *testing.T) {
	e, image := theEngine(t)
	for _, withFile := range []bool{true, false} {
		t.Run(fmt.Sprintf("state file %v", withFile), func(t *testing.T) {
			n := newLegacyNode(t, image)
			etcd := etcdPart(t)
			n.etcd(etcdClient(t, etcd), "127.0.0.1:1") // the new agent registers its own address, so the one in etcd is not used
			c := start(t, harness.Options{Binaries: raced(t), Schedulers: 1, SchedulerEnv: mirrored(etcd, map[string]string{"SCHEDULER_DRIFT_DETECT_INTERVAL": "2s"})})
			a := got[*harness.Agent](t)(c.NewAgent(harness.AgentOptions{NodeID: "node-a", Env: map[string]string{"PERSYS_RECONCILE_INTERVAL": "1s"}}))
			onDocker(t, e, c)
			if withFile {
				n.stateFile(a.StatePath)
			}
			before := map[string][]string{n.web: n.now(n.web), n.shop: n.now(n.shop)}
			untouched := func(when string, ids ...string) {
				t.Helper()
				for _, id := range ids {
					if now := n.now(id); fmt.Sprint(now) != fmt.Sprint(before[id]) {
						t.Fatalf("%s: workload %s had the containers %q and has %q, want them untouched; the agent's log ends with\n%s", when, id, before[id], now, a.Tail(30))
					}
				}
			}
			waitMode(t, c, "recovery")
			must(t, a.Start())
			ctl(t, c, "recovery", "import", "--yes")
			must(t, c.WaitNode(t.Context(), "node-a", "Ready", settle))
			for _, id := range []string{n.web, n.shop} {
				got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, settle, running))
			}
			untouched("after the import", n.web, n.shop)

			// Wait until drift detection has compared the node with the state. It must record the revision that runs
			// on the node as the adopted revision, and must find no drift.
			if withFile {
				for _, id := range []string{n.web, n.shop} {
					got[*controlv1.WorkloadView](t)(c.WaitWorkload(t.Context(), id, 2*time.Minute, func(w *controlv1.WorkloadView) bool { return w.GetRevisionId() == "rev-7" }))
				}
			}
			admin := got[clusterv1.ClusterClient](t)(c.Admin(0))
			must(t, testbed.Poll(t.Context(), time.Minute, "no drift after the import", func(ctx context.Context) error {
				drifts, err := admin.ListDrifts(ctx, &clusterv1.ListDriftsRequest{})
				if err == nil && len(drifts.GetDrifts()) > 0 {
					err = fmt.Errorf("after the import there are drifts: %v", drifts)
				}
				return err
			}))
			must(t, a.Kill())
			must(t, a.Start())
			must(t, c.WaitNode(t.Context(), "node-a", "Ready", settle))
			untouched("after a restart of the agent", n.web, n.shop)

			// Stop and start the workloads by persysctl. The agent must not recreate their containers.
			for _, id := range []string{n.web, n.shop} {
				first, _, _ := strings.Cut(before[id][0], " ")
				ctl(t, c, "stop", id, "--wait")
				ctl(t, c, "start", id, "--wait")
				if now := n.now(id); len(now) != 1 || !strings.HasPrefix(now[0], first) {
					t.Errorf("after a stop and a start, workload %s has the containers %q, want container %s as before", id, now, first)
				}
			}

			// Change the specification of the stack, as a person does. Its container must be replaced, and the volume
			// must keep its content.
			file := filepath.Join(t.TempDir(), "stack.yaml")
			must(t, os.WriteFile(file, []byte(fmt.Sprintf(legacyYAML, image, ", environment: {V: \"2\"}")), 0o600))
			ctl(t, c, "apply", "-f", file, "--name", n.shop, "--wait")
			must(t, testbed.Poll(t.Context(), settle, "the changed stack", func(context.Context) error {
				if now := n.now(n.shop); len(now) != 1 || strings.HasPrefix(now[0], n.ids[n.shop]) {
					return fmt.Errorf("after a change of the specification the stack has the containers %q, want another one than %s", now, n.ids[n.shop])
				}
				return nil
			}))
			if now := n.content(); now != "content of shop" {
				t.Errorf("after an update the volume of the stack holds %q, want its former content", now)
			}
			// Delete web. Its imported record does not contain its volume, so the volume's folder must stay.
			ctl(t, c, "delete", n.web, "--yes", "--wait")
			if raw, err := os.ReadFile(filepath.Join(n.data, "f")); !withFile && (err != nil || string(raw) != "content of web") {
				t.Errorf("the file in the volume of web is %q (%v), want it kept", raw, err)
			}
		})
	}
}
