package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/spec"
	"github.com/persys/compute/testbed"
)

const (
	example  = "examples/hello.yaml"
	image    = "persys/hello:demo"
	label    = "persys.demo" // label of the image that the demo builds
	greeting = "GREETING"    // environment variable of the workload that the second apply changes
	changed  = "The leader was killed, and this change succeeded"
)

type options struct{ exit, simulate bool }

type demo struct {
	opt options
	out screen

	root     string
	engine   *harness.Engine // Docker engine; nil if the engine is simulated
	lock     net.Listener    // lock on the engine, held during the demo
	keep     bool            // whether the image existed before the demo, which then does not remove it
	cluster  *harness.Cluster
	id       string // cluster id of the demo
	workload *controlv1.ApplyWorkloadRequest
	port     int // port that the workload publishes
}

// cleanupLimit is the time limit of cleanUp.
const cleanupLimit = time.Minute

func (d *demo) run(ctx context.Context) (err error) {
	d.out.title("Persys Compute: three schedulers, two agents, one container, and the leader dies")
	if d.root, err = testbed.Root(ctx); err != nil {
		return err
	}
	if err := d.example(); err != nil {
		return err
	}
	d.findEngine(ctx)
	err = d.alone(ctx)
	if err == nil {
		err = d.portFree(ctx)
	}
	if err != nil {
		return errors.Join(err, d.closeEngine())
	}
	dir, err := os.MkdirTemp("", "persys-demo-")
	if err != nil {
		return errors.Join(err, d.closeEngine())
	}
	defer func() {
		if err != nil && ctx.Err() == nil && d.cluster != nil {
			d.out.line("\n%s", d.cluster.Tails(8))
		}
		err = errors.Join(err, d.cleanUp(dir))
	}()
	if err := d.start(ctx, dir); err != nil {
		return err
	}
	if err := d.deploy(ctx); err != nil {
		return err
	}
	if err := d.killLeader(ctx, dir); err != nil {
		return err
	}
	if d.opt.exit {
		return nil
	}
	d.invite(dir)
	<-ctx.Done()
	d.out.line("")
	return nil
}

// example parses the example workload in the way that persysctl does, and reads its port.
func (d *demo) example() error {
	path := filepath.Join(d.root, example)
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	reqs, err := spec.Parse(example, data, spec.Options{})
	if err != nil {
		return err
	}
	if len(reqs) != 1 || len(reqs[0].GetSpec().GetContainer().GetPorts()) == 0 {
		return fmt.Errorf("%s must hold one container with a port", example)
	}
	d.workload = reqs[0]
	d.port = int(d.workload.GetSpec().GetContainer().GetPorts()[0].GetHostPort())
	return nil
}

// findEngine opens the Docker engine. Without one it prints that workloads are simulated.
func (d *demo) findEngine(ctx context.Context) {
	if d.opt.simulate {
		d.out.line("  Workloads are simulated, as asked: everything is real except that nothing runs.\n")
		return
	}
	e, err := harness.OpenEngine(ctx)
	if err != nil {
		d.out.line("  %v: start one (sudo systemctl start docker) and make sure that you may use it (docker ps); until then workloads are simulated.\n",
			err)
		return
	}
	d.engine = e
}

// alone reserves the engine for this demo. It returns an error if another demo runs on the same engine: both
// would build the same image, publish the same port and remove each other's containers. The lock is an
// abstract socket (unix(7)), which the kernel closes with the process.
func (d *demo) alone(ctx context.Context) error {
	if d.engine == nil {
		return nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", "@persys-demo")
	if errors.Is(err, syscall.EADDRINUSE) {
		return errors.New("another demo runs on this machine, with the same image and port: end it with Ctrl-C, or run this one with ARGS=--simulate")
	}
	d.lock = l
	return err
}

// portFree returns an error if another program uses the port of the workload. The error says how to free
// the port.
func (d *demo) portFree(ctx context.Context) error {
	if d.engine == nil || d.port == 0 {
		return nil
	}
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", d.port))
	if err == nil {
		return l.Close()
	}
	if name := d.engine.Publisher(ctx, d.port); name != "" {
		return fmt.Errorf("port %d, which %s publishes, is held by the container %s: remove it (docker rm -f %s) and start the demo again", d.port, example, name, name)
	}
	return fmt.Errorf("port %d, which %s publishes, is taken: stop the program that uses it (ss -ltnp 'sport = :%d') or change the port in that file, and start the demo again",
		d.port, example, d.port)
}

func (d *demo) start(ctx context.Context, dir string) error {
	var bin harness.Binaries
	err := d.out.step("building persys", func() (_ string, err error) {
		if built := os.Getenv(harness.BuildsEnv); built != "" {
			bin = harness.BuiltIn(harness.Sets(built)[harness.ShippedSet].Dir)
		} else {
			bin, err = harness.Build(ctx, harness.BuildOptions{Dir: filepath.Join(dir, "bin")})
		}
		return "built persys", err
	})
	if err != nil {
		return err
	}
	if d.engine != nil {
		err := d.out.step("building "+image, func() (string, error) {
			d.keep = d.engine.HasImage(ctx, image) && !d.engine.HasLabel(ctx, image, label)
			return "built a web server into " + image + " FROM scratch, nothing pulled",
				d.engine.BuildGo(ctx, image, "./examples/hello", map[string]string{label: "true"})
		})
		if err != nil {
			return err
		}
	}
	err = d.out.step("starting 3 schedulers", func() (_ string, err error) {
		if d.cluster, err = harness.Start(ctx, harness.Options{Binaries: bin, Dir: filepath.Join(dir, "cluster")}); err != nil {
			return "", err
		}
		st, err := d.cluster.Status(ctx, 0)
		if err != nil {
			return "", err
		}
		d.id = st.GetClusterId()
		leader, err := d.cluster.WaitLeader(ctx, 10*time.Second)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("3 schedulers formed a Raft group, %s leads", d.cluster.Schedulers[leader].Name), nil
	})
	if err != nil {
		return err
	}
	where := "this machine's Docker engine"
	if d.engine == nil {
		where = "a simulated engine each"
	}
	return d.out.step("starting 2 agents", func() (string, error) {
		for range 2 {
			if _, err := d.cluster.StartAgent(ctx, harness.AgentOptions{Simulate: d.engine == nil}); err != nil {
				return "", err
			}
		}
		return "2 agents are ready on " + where, nil
	})
}

// deploy applies the workload, waits for it, fetches the page and lists the cluster.
func (d *demo) deploy(ctx context.Context) error {
	if err := d.ctl(ctx, nil, "apply", "-f", example, "--wait"); err != nil {
		return err
	}
	d.out.line("")
	first := d.workload.GetSpec().GetContainer().GetEnv()[greeting]
	if err := d.showPage(ctx, first); err != nil {
		return err
	}
	for _, verb := range []string{"nodes", "list", "status"} {
		if err := d.ctl(ctx, nil, verb); err != nil {
			return err
		}
	}
	return nil
}

// killLeader kills the leader and changes the workload through another replica.
func (d *demo) killLeader(ctx context.Context, dir string) error {
	file := filepath.Join(dir, "hello.yaml")
	if err := d.rewrite(file); err != nil {
		return err
	}
	leader, err := d.cluster.WaitLeader(ctx, 10*time.Second)
	if err != nil {
		return err
	}
	dead := d.cluster.Schedulers[leader]
	other := d.cluster.Schedulers[(leader+1)%len(d.cluster.Schedulers)]
	pid := dead.PID()

	d.out.command(fmt.Sprintf("kill -9 %d   # %s, the leader", pid, dead.Name))
	if err := dead.Kill(); err != nil {
		return err
	}
	at := time.Now()
	elected := make(chan time.Duration, 1)
	go func() {
		defer close(elected)
		if _, err := d.cluster.WaitLeader(ctx, 10*time.Second); err == nil {
			elected <- time.Since(at)
		}
	}()
	// persysctl gets only the address of this replica, which forwards the call to the new leader.
	err = d.ctl(ctx, []string{other.GRPC}, "apply", "-f", file)
	took := time.Since(at)
	vote, ok := <-elected
	if err != nil {
		return err
	}
	if !ok {
		return errors.New("no leader was elected within 10 s")
	}
	// The demo looks for the new leader only every few milliseconds, so the new leader may acknowledge the
	// change before the demo has found it. The election did not take longer than the change.
	vote = min(vote, took)
	d.out.line("\n  %s %s", d.out.paint(green, "✓"),
		d.out.paint(bold, fmt.Sprintf("acknowledged through %s %s after the kill; a new leader was elected within %s", other.Name, elapsed(took), elapsed(vote))))
	if err := d.showPage(ctx, changed); err != nil {
		return err
	}
	err = d.out.step("starting "+dead.Name+" again", func() (string, error) {
		if err := dead.Start(); err != nil {
			return "", err
		}
		return dead.Name + " has restarted from its disk, as a follower", d.cluster.WaitReady(ctx, 20*time.Second)
	})
	if err != nil {
		return err
	}
	return d.ctl(ctx, nil, "status")
}

// rewrite copies the workload file of the example to the path in the parameter to, and changes the greeting in the copy.
func (d *demo) rewrite(to string) error {
	data, err := os.ReadFile(filepath.Join(d.root, example))
	if err != nil {
		return err
	}
	line := regexp.MustCompile(`(?m)^(\s*` + greeting + `:).*$`)
	if !line.Match(data) {
		return fmt.Errorf("%s sets no %s", example, greeting)
	}
	return os.WriteFile(to, line.ReplaceAll(data, []byte("${1} "+changed)), 0o644)
}

// showPage waits until the page contains a text. With a simulated engine it waits until the
// workload runs.
func (d *demo) showPage(ctx context.Context, text string) error {
	if d.engine == nil {
		return d.out.step("looking at the workload", func() (string, error) {
			w, err := d.cluster.WaitWorkload(ctx, d.workload.GetWorkloadId(), 30*time.Second, func(w *controlv1.WorkloadView) bool {
				return w.GetStatus() == "Running" && w.GetAssignmentAcknowledged()
			})
			return fmt.Sprintf("simulated, so there is no page: %s is %s on %s, revision %s", w.GetWorkloadId(), w.GetStatus(), w.GetAssignedNodeId(), w.GetRevisionId()), err
		})
	}
	url := fmt.Sprintf("http://127.0.0.1:%d/", d.port)
	return d.out.step("fetching "+url, func() (string, error) {
		client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		err := testbed.Poll(ctx, 60*time.Second, "fetching "+url, func(ctx context.Context) error {
			page, err := fetch(ctx, client, url)
			if err != nil {
				return err
			}
			if !strings.Contains(page, html.EscapeString(text)) {
				return fmt.Errorf("the page does not show %q yet", text)
			}
			return nil
		})
		return fmt.Sprintf("%s says: %s", url, text), err
	})
}

func fetch(ctx context.Context, client *http.Client, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answered %s", url, resp.Status)
	}
	return string(body), nil
}

// ctl prints a persysctl command and runs it on this terminal.
func (d *demo) ctl(ctx context.Context, addrs []string, args ...string) error {
	shown := strings.Join(args, " ")
	if len(addrs) > 0 {
		shown = "--server " + strings.Join(addrs, ",") + " " + shown
	}
	d.out.command("persysctl " + shown)
	for i, a := range args {
		if a == example {
			args[i] = filepath.Join(d.root, a)
		}
	}
	env := d.cluster.CtlEnv(addrs...)
	for _, k := range []string{"TERM", "NO_COLOR", "COLUMNS"} {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	code, err := d.cluster.RunCtl(ctx, env, os.Stdout, os.Stderr, args...)
	if err == nil && code != 0 {
		err = fmt.Errorf("persysctl %s ended with status %d", args[0], code)
	}
	return err
}

// invite prints commands that the user can try while the cluster runs.
func (d *demo) invite(dir string) {
	d.out.title("The cluster is up. In another terminal:")
	d.out.line("  export PATH=%s:$PATH", filepath.Join(dir, "bin"))
	d.out.line("  export PERSYS_SCHEDULER_ADDR=%s PERSYS_INSECURE=true\n", strings.Join(d.cluster.Addrs(), ","))
	for _, c := range []string{"list", "get hello", "logs hello -f", "why hello", "events -w", "drain node-a --wait", "delete hello --wait", "status"} {
		d.out.line("  persysctl %s", c)
	}
	for _, p := range d.cluster.Processes() {
		d.out.line("  kill -9 %-8d %s", p.PID(), d.out.paint(dim, "# "+p.Name))
	}
	if d.engine != nil {
		d.out.line("\n  The page is at http://127.0.0.1:%d/", d.port)
	}
	d.out.line("\n  Ctrl-C stops the cluster and removes everything that the demo made.")
}

// cleanUp removes everything that the demo created, also after a failure or Ctrl-C.
func (d *demo) cleanUp(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupLimit)
	defer cancel()
	return d.out.step("cleaning up", func() (string, error) {
		var errs []error
		if d.cluster != nil {
			for _, a := range d.cluster.Agents {
				errs = append(errs, a.Kill()) // stop the agent first, because an agent starts removed containers again
			}
			if d.engine != nil && d.id != "" {
				errs = append(errs, d.engine.RemoveAll(ctx, d.id))
			}
			errs = append(errs, d.cluster.Close())
		}
		if d.engine != nil && !d.keep && d.engine.HasImage(ctx, image) {
			errs = append(errs, d.engine.RemoveImage(ctx, image))
		}
		errs = append(errs, d.closeEngine(), os.RemoveAll(dir))
		return "stopped and removed everything", errors.Join(errs...)
	})
}

func (d *demo) closeEngine() error {
	if d.engine == nil {
		return nil
	}
	err := d.engine.Close()
	if d.lock != nil {
		err = errors.Join(err, d.lock.Close())
	}
	return err
}
