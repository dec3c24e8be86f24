package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/testbed"
)

// Options of a Cluster.
type Options struct {
	// Schedulers is the number of replicas; default 3.
	Schedulers int
	// Binaries are the programs to run.
	Binaries Binaries
	// Dir is the folder of data, logs and certificates. If it is empty, the cluster
	// uses a temporary folder, which Close removes.
	Dir string
	// TLS creates development certificates and a cluster key. Without TLS every
	// program runs with -insecure.
	TLS bool
	// OwnCA makes the schedulers create certificates as in production: the first scheduler creates the CA and
	// the keys (--init), and the others join with the tokens that the first one writes (--join). It implies TLS.
	OwnCA bool
	// SchedulerEnv and AgentEnv are added to the environment of every scheduler
	// and agent. They override the variables that the harness sets.
	SchedulerEnv, AgentEnv map[string]string
	// DataDirs are the data directories of the first schedulers, in order. The other schedulers have their data
	// below Dir.
	DataDirs []string
	// Host is the IP address of the schedulers; default 127.0.0.1. With another address, agents on Machines can
	// reach them.
	Host string
	// Clocks are the clock offsets of the first schedulers. With a positive offset the clock is ahead.
	Clocks []time.Duration
}

// Cluster is a running cluster. Its methods are safe for concurrent use, except
// for adding schedulers and agents.
type Cluster struct {
	Schedulers []*Scheduler
	Agents     []*Agent
	Dir        string

	named int // number of agents that NewAgent made
	opt   Options
	own   bool // Start made Dir as a temporary folder, so Close removes it
	ports ports
	certs pki.DevSet
	key   string // path of the cluster key; set with TLS

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
	whole *dial.Conn
	files map[string]*pki.Files
}

// Scheduler is the process of one replica.
type Scheduler struct {
	*Process
	Index                    int
	GRPC, HTTP, Raft, Gossip string // addresses as host:port
	DNS                      string // DNS address as host:port, for UDP and TCP
	DataDir                  string
}

// Wipe removes the data directory, as if the disk were lost. The scheduler must not run.
func (s *Scheduler) Wipe() error {
	if s.Running() {
		return fmt.Errorf("%s still runs: stop it before Wipe", s.Name)
	}
	return os.RemoveAll(s.DataDir)
}

// Agent is the process of one agent.
type Agent struct {
	*Process
	NodeID    string
	Addr      string // address of the agent's API as host:port
	HTTP      string // address of /metrics and /health as host:port
	StatePath string
	SimDir    string // folder of the simulated engine; empty with Docker
}

// startAttempts is how often Start tries to start the cluster, each time with other ports, if another program
// has taken one of them.
const startAttempts = 5

// Start starts the schedulers and waits until they have a leader and all are
// voters. If that fails, it stops everything, and the error contains the last lines
// of the logs.
func Start(ctx context.Context, opt Options) (*Cluster, error) {
	if opt.Schedulers == 0 {
		opt.Schedulers = 3
	}
	opt.TLS = opt.TLS || opt.OwnCA
	var err error
	for range startAttempts {
		var c *Cluster
		if c, err = Prepare(opt); err != nil {
			return nil, err
		}
		if err = c.boot(ctx); err == nil {
			return c, nil
		}
		taken := c.portTaken()
		err = errors.Join(err, errors.New(c.Tails(15)), c.Close())
		if !taken || ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

// Prepare creates the folders, certificates and command lines of a cluster, but starts no program, so that a
// test can change settings before the start.
func Prepare(opt Options) (*Cluster, error) {
	c := &Cluster{opt: opt, Dir: opt.Dir, conns: map[string]*grpc.ClientConn{}, files: map[string]*pki.Files{}}
	if c.Dir == "" {
		dir, err := os.MkdirTemp("", "persys-e2e-")
		if err != nil {
			return nil, err
		}
		c.Dir, c.own = dir, true
	}
	if err := c.prepare(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) prepare() error {
	if err := os.MkdirAll(c.logs(), 0o755); err != nil {
		return err
	}
	if c.opt.TLS && !c.opt.OwnCA {
		if err := c.makeCerts(); err != nil {
			return err
		}
	}
	for range c.opt.Schedulers {
		if _, err := c.NewScheduler(); err != nil {
			return err
		}
	}
	// Set the environments again: each scheduler gets the addresses of all others to join, also of those
	// that were prepared after it.
	for _, s := range c.Schedulers {
		c.JoinAll(s)
	}
	return nil
}

func (c *Cluster) logs() string { return filepath.Join(c.Dir, "logs") }

func (c *Cluster) makeCerts() error {
	opt := pki.DevOptions{Cluster: "e2e", Users: []string{pki.AdminID}, Gateways: []string{"gateway"}}
	for i := range 5 {
		opt.Schedulers = append(opt.Schedulers, schedulerName(i))
		opt.Agents = append(opt.Agents, nodeName(i))
	}
	var err error
	if c.certs, err = pki.DevCerts(filepath.Join(c.Dir, "certs"), opt); err != nil {
		return err
	}
	c.key = filepath.Join(c.Dir, "cluster.key")
	_, _, err = pki.LoadOrCreateKey(c.key)
	return err
}

func schedulerName(i int) string { return "scheduler-" + strconv.Itoa(i+1) }

// nodeName returns node-a to node-z, then node-27, node-28, …
func nodeName(i int) string {
	if i >= 26 {
		return "node-" + strconv.Itoa(i+1)
	}
	return "node-" + string(rune('a'+i))
}

// inherited lists the variables that programs inherit from this process.
var inherited = []string{"PATH", "HOME", "TMPDIR", "DOCKER_HOST", "GORACE", "GOCOVERDIR", "LANG", "TZ"}

// environment returns the inherited variables and those of sets. If two sets have the same variable, the later set
// takes precedence. No other variable of this process reaches a program.
func environment(sets ...map[string]string) []string {
	all := map[string]string{}
	for _, k := range inherited {
		if v, ok := os.LookupEnv(k); ok {
			all[k] = v
		}
	}
	for _, s := range sets {
		maps.Copy(all, s)
	}
	out := make([]string, 0, len(all))
	for _, k := range slices.Sorted(maps.Keys(all)) {
		out = append(out, k+"="+all[k])
	}
	return out
}

// NewScheduler prepares another scheduler, which joins the existing ones.
func (c *Cluster) NewScheduler() (*Scheduler, error) {
	i := len(c.Schedulers)
	s := &Scheduler{Index: i, DataDir: filepath.Join(c.Dir, schedulerName(i))}
	if err := c.draw(s); err != nil {
		return nil, err
	}
	s.Process = &Process{Name: schedulerName(i), Path: c.opt.Binaries.Scheduler, Log: filepath.Join(c.logs(), schedulerName(i)+".log")}
	if i < len(c.opt.DataDirs) {
		s.DataDir = c.opt.DataDirs[i]
	}
	if i < len(c.opt.Clocks) {
		s.Clock = c.opt.Clocks[i]
	}
	c.Schedulers = append(c.Schedulers, s)
	c.JoinAll(s)
	return s, nil
}

func (c *Cluster) draw(s *Scheduler) error {
	for _, addr := range []*string{&s.GRPC, &s.HTTP, &s.Raft, &s.Gossip, &s.DNS} {
		port, err := c.ports.take()
		if err != nil {
			return err
		}
		*addr = net.JoinHostPort(c.host(), strconv.Itoa(port))
	}
	return nil
}

func (c *Cluster) host() string { return cmp.Or(c.opt.Host, "127.0.0.1") }

// Readdress gives a scheduler other addresses for its next start, as if its disk were now in another
// machine. The scheduler must not run.
func (c *Cluster) Readdress(s *Scheduler) error {
	if s.Running() {
		return fmt.Errorf("%s still runs: stop it before Readdress", s.Name)
	}
	if err := c.draw(s); err != nil {
		return err
	}
	c.JoinAll(s)
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	if c.whole != nil { // the connection to all schedulers uses the former addresses, so close it
		err, c.whole = c.whole.Close(), nil
	}
	return err
}

// JoinAll sets the environment of a scheduler so that it joins all present schedulers.
func (c *Cluster) JoinAll(s *Scheduler) {
	join := make([]string, len(c.Schedulers))
	for i, o := range c.Schedulers {
		join[i] = o.Gossip
	}
	env := map[string]string{
		"SCHEDULER_NAME":             s.Name,
		"SCHEDULER_DATA_DIR":         s.DataDir,
		"SCHEDULER_BOOTSTRAP_EXPECT": strconv.Itoa(c.opt.Schedulers),
		"SCHEDULER_JOIN":             strings.Join(join, ","),
		"GRPC_PORT":                  portOf(s.GRPC),
		"METRICS_PORT":               portOf(s.HTTP),
		"SCHEDULER_RAFT_ADDR":        s.Raft,
		"SCHEDULER_GOSSIP_ADDR":      s.Gossip,
		"PERSYS_GRPC_ADDR":           c.host(),
		"ETCD_ENDPOINTS":             "none",
		"SCHEDULER_DNS_ADDR":         s.DNS,
	}
	if c.opt.OwnCA {
		delete(env, "SCHEDULER_JOIN")
		delete(env, "SCHEDULER_BOOTSTRAP_EXPECT")
		s.Args = []string{"--join", c.Token("scheduler")}
		if s.Index == 0 {
			s.Args = []string{"--init"}
		}
	} else if c.opt.TLS {
		leaf := c.Leaf("scheduler/" + s.Name)
		maps.Copy(env, map[string]string{
			"PERSYS_TLS_CA": leaf.CA, "PERSYS_TLS_CERT": leaf.Cert, "PERSYS_TLS_KEY": leaf.Key,
			"SCHEDULER_CLUSTER_KEY_FILE": c.key,
		})
	} else {
		env["SCHEDULER_INSECURE"] = "true"
	}
	s.Env = environment(env, c.opt.SchedulerEnv)
}

func portOf(addr string) string {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return ""
	}
	return port
}

// Leaf returns the files of the certificate for the identity "<role>/<id>", with TLS.
func (c *Cluster) Leaf(name string) pki.Paths { return c.certs.Leaf[name] }

// SetLeaf replaces the certificate files of "<role>/<id>", with TLS. Call it before their first use.
func (c *Cluster) SetLeaf(name string, p pki.Paths) { c.certs.Leaf[name] = p }

// AdminDir is the folder in which the first scheduler writes the identity of the admin
// and the first join tokens, with OwnCA.
func (c *Cluster) AdminDir() string { return filepath.Join(c.Schedulers[0].DataDir, "admin") }

// Token returns the first join token of a role, with OwnCA. It is empty until the
// scheduler has written it.
func (c *Cluster) Token(role string) string {
	raw, err := os.ReadFile(filepath.Join(c.AdminDir(), role+".token"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// initialize starts the first scheduler of a cluster with OwnCA, and waits for the
// join tokens.
func (c *Cluster) initialize(ctx context.Context) error {
	if err := c.Schedulers[0].Start(); err != nil {
		return err
	}
	err := testbed.Poll(ctx, 60*time.Second, "join tokens", func(context.Context) error {
		if !c.Schedulers[0].Running() {
			return testbed.Final(errors.New("the first scheduler has exited"))
		}
		if c.Token("agent") == "" || c.Token("scheduler") == "" {
			return errors.New("the first scheduler has not written the join tokens yet")
		}
		return nil
	})
	c.certs.Leaf = map[string]pki.Paths{admin: pki.IdentityStore{Dir: c.AdminDir()}.Paths()}
	for _, s := range c.Schedulers[1:] {
		c.JoinAll(s)
	}
	return err
}

// boot starts the schedulers and waits until they agree on a leader and all of them are voters.
func (c *Cluster) boot(ctx context.Context) error {
	others := c.Schedulers
	if c.opt.OwnCA {
		if err := c.initialize(ctx); err != nil {
			return err
		}
		others = others[1:]
	}
	for _, s := range others {
		if err := s.Start(); err != nil {
			return err
		}
	}
	return c.WaitReady(ctx, 30*time.Second)
}

// portTaken reports whether a scheduler exited because another program uses its port.
func (c *Cluster) portTaken() bool {
	for _, s := range c.Schedulers {
		if !s.Running() && strings.Contains(s.Tail(10), "address already in use") {
			return true
		}
	}
	return false
}

// AgentOptions of one agent.
type AgentOptions struct {
	// Simulate makes the agent use a simulated engine, which keeps its containers in a folder of the agent,
	// instead of Docker.
	Simulate bool
	// NodeID; default node-a, node-b, …
	NodeID string
	// Machine is a machine of OpenMachines, on which the agent then runs with the machine's container engine;
	// nil means this machine.
	Machine *Machine
	Env     map[string]string
}

// StartAgent starts an agent with the addresses of all schedulers, and waits until
// its node is Ready.
func (c *Cluster) StartAgent(ctx context.Context, opt AgentOptions) (*Agent, error) {
	a, err := c.NewAgent(opt)
	if err != nil {
		return nil, err
	}
	if err := a.Start(); err != nil {
		return nil, err
	}
	return a, c.WaitNode(ctx, a.NodeID, "Ready", 20*time.Second)
}

// NewAgent prepares an agent and does not start it.
func (c *Cluster) NewAgent(opt AgentOptions) (*Agent, error) {
	id := opt.NodeID
	if id == "" {
		id = nodeName(c.named)
	}
	c.named++
	grpcPort, err := c.ports.take()
	if err != nil {
		return nil, err
	}
	httpPort, err := c.ports.take()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(c.Dir, id)
	a := &Agent{NodeID: id, Addr: loopback(grpcPort), HTTP: loopback(httpPort), StatePath: filepath.Join(dir, "state.db")}
	env := map[string]string{
		"PERSYS_NODE_ID":        id,
		"PERSYS_STATE_PATH":     a.StatePath,
		"PERSYS_SCHEDULER_ADDR": strings.Join(c.Addrs(), ","),
		"PERSYS_GRPC_ADDR":      "127.0.0.1",
		"PERSYS_GRPC_PORT":      strconv.Itoa(grpcPort),
		"PERSYS_METRICS_PORT":   strconv.Itoa(httpPort),
		// Tests never use the libvirt of this machine. A test that needs libvirt starts one.
		"PERSYS_VM_ENABLED": "false",
	}
	if opt.Simulate {
		a.SimDir = filepath.Join(dir, "engine")
		env["PERSYS_SIMULATE"] = a.SimDir
	}
	path := c.opt.Binaries.Agent
	var args []string
	if m := opt.Machine; m != nil {
		host := m.Address.String()
		a.Addr, a.HTTP = net.JoinHostPort(host, portOf(a.Addr)), net.JoinHostPort(host, portOf(a.HTTP))
		env["PERSYS_GRPC_ADDR"], env["DOCKER_HOST"] = host, m.DockerHost
		path, args = m.command(path)
	}
	if c.opt.OwnCA {
		delete(env, "PERSYS_SCHEDULER_ADDR")
		args = append(args, "--join", c.Token("agent"))
	} else if c.opt.TLS {
		leaf := c.Leaf("agent/" + id)
		maps.Copy(env, map[string]string{"PERSYS_TLS_CA": leaf.CA, "PERSYS_TLS_CERT": leaf.Cert, "PERSYS_TLS_KEY": leaf.Key})
	} else {
		env["PERSYS_INSECURE"] = "true"
	}
	a.Process = &Process{Name: id, Path: path, Args: args, Log: filepath.Join(c.logs(), id+".log"), Env: environment(env, c.opt.AgentEnv, opt.Env)}
	c.Agents = append(c.Agents, a)
	return a, nil
}

// ForgetAgents removes all agents from c.Agents. Their processes must have ended. Agents that are made later get new
// names, never those of the removed ones.
func (c *Cluster) ForgetAgents() error {
	var errs []error
	for _, a := range c.Agents {
		errs = append(errs, a.killFencers())
	}
	c.Agents = nil
	return errors.Join(errs...)
}

// Addrs returns the gRPC addresses of all schedulers.
func (c *Cluster) Addrs() []string {
	out := make([]string, len(c.Schedulers))
	for i, s := range c.Schedulers {
		out[i] = s.GRPC
	}
	return out
}

// Processes returns the processes of the schedulers, then those of the agents.
func (c *Cluster) Processes() []*Process {
	var out []*Process
	for _, s := range c.Schedulers {
		out = append(out, s.Process)
	}
	for _, a := range c.Agents {
		out = append(out, a.Process)
	}
	return out
}

// Tails returns the last lines of every log.
func (c *Cluster) Tails(lines int) string {
	var b strings.Builder
	for _, p := range c.Processes() {
		fmt.Fprintf(&b, "--- %s\n%s\n", p.Name, p.Tail(lines))
	}
	return b.String()
}

// Alarms returns the reports of data races and of panics that it finds in the logs of all processes.
func (c *Cluster) Alarms() []string {
	var out []string
	for _, p := range c.Processes() {
		if _, err := os.Stat(p.Log); err == nil {
			out = append(out, p.Alarms()...)
		}
	}
	return out
}

// SaveLogs copies all logs into a folder.
func (c *Cluster) SaveLogs(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var errs []error
	for _, p := range c.Processes() {
		errs = append(errs, copyFile(filepath.Join(dir, filepath.Base(p.Log)), p.Log))
	}
	return errors.Join(errs...)
}

func copyFile(to, from string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}

// Close ends all connections, kills all processes and removes a temporary folder. It
// may be called twice.
func (c *Cluster) Close() error {
	c.mu.Lock()
	var errs []error
	for _, cc := range c.conns {
		errs = append(errs, cc.Close())
	}
	clear(c.conns)
	if c.whole != nil {
		errs = append(errs, c.whole.Close())
		c.whole = nil
	}
	c.mu.Unlock()
	for _, p := range c.Processes() {
		errs = append(errs, p.Kill())
	}
	for _, a := range c.Agents {
		errs = append(errs, a.killFencers())
	}
	if c.own {
		errs = append(errs, os.RemoveAll(c.Dir))
	}
	return errors.Join(errs...)
}
