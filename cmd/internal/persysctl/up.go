package persysctl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/cmd/internal/machine"
	"github.com/persys/compute/cmd/persysctl/contexts"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/pki"
)

const (
	// upLimit is how long `persysctl up` waits for each of these: a leader of the new cluster, its node,
	// and its gateway.
	upLimit = time.Minute
	// upEvery is the time between two calls while `persysctl up` waits.
	upEvery = 500 * time.Millisecond
	// upUses is how many machines may join with each join token that `persysctl up` prints.
	upUses = 10
)

func (c *cli) upCommand() *cobra.Command {
	var name string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use: "up", Short: "Make this machine a cluster of one: scheduler, agent, gateway and web console",
		Args: func(_ *cobra.Command, given []string) error {
			if len(given) > 0 { // docker compose up takes the names of services
				return fmt.Errorf("up starts a cluster on this machine and takes no argument, got %q; a workload is started with persysctl apply -f FILE", given[0])
			}
			return nil
		},
		Long: `Make this machine a cluster of one: scheduler, agent, gateway and web console.

The package persys must be installed, and the command needs root. It starts the services
of the package with mutual TLS between all programs, stores the admin's connection as a
context, and prints a link that opens the web console and the commands with which other
machines join. Repeated, it starts nothing again, stores the addresses of new schedulers
in the context, and prints a new link and new commands.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.up(cmd.Context(), name, ttl) },
	}
	cmd.Flags().StringVar(&name, "name", "home", "name of the context for this cluster, see persysctl context")
	cmd.Flags().DurationVar(&ttl, "ttl", time.Hour, "how long the join tokens are valid, at most 168h")
	return cmd
}

func (c *cli) up(ctx context.Context, name string, ttl time.Duration) error {
	m, err := c.thisMachine()
	if err != nil {
		return err
	}
	if err := m.Up(ctx); err != nil {
		return failf(exitFailed, "", "%v", err)
	}
	if err := c.adminContext(m, name); err != nil {
		return err
	}
	if err := c.connect(ctx); err != nil {
		return err
	}
	var node, scheduler, server string
	if err := c.eventually(ctx, "waiting for a leader", func(ctx context.Context) (err error) {
		if node, err = c.newToken(ctx, pki.RoleAgent, ttl, upUses); err != nil {
			return err
		}
		scheduler, err = c.newToken(ctx, pki.RoleScheduler, ttl, upUses)
		return err
	}); err != nil {
		return err
	}
	if server, err = c.rememberSchedulers(ctx); err != nil {
		return err
	}
	if err := m.Join(ctx, node); err != nil {
		return failf(exitFailed, "", "%v", err)
	}
	if !m.Joined(pki.RoleGateway) {
		gateway, err := c.newToken(ctx, pki.RoleGateway, ttl, 1)
		if err != nil {
			return err
		}
		if err := m.Join(ctx, gateway); err != nil {
			return failf(exitFailed, "", "%v", err)
		}
	}
	if err := c.eventually(ctx, "waiting for the node", func(ctx context.Context) error {
		r, err := c.allNodes(ctx, "Ready")
		if err == nil && len(r.GetNodes()) == 0 {
			err = failf(exitFailed, "journalctl -u persys-agent", "no node of the cluster is ready")
		}
		return err
	}); err != nil {
		return err
	}
	fmt.Fprintln(c.err, "the web console opens with this link:")
	if err := c.eventually(ctx, "waiting for the gateway", func(ctx context.Context) error {
		return c.webConsole(ctx, webConsole{ttl: 12 * time.Hour})
	}); err != nil {
		return err
	}
	fmt.Fprintf(c.err, `
Persys is up at %s. persysctl (or persys) on this machine is the admin's: persysctl status

Other machines with the package persys join with one of these commands, within %s.
A machine that runs workloads:
  persys join %s

Another scheduler; with three schedulers, any one may fail. Then repeat persys up here,
so that persysctl knows the address of the new scheduler:
  persys join %s
`, server, screen.Span(ttl), node, scheduler)
	return nil
}

func (c *cli) thisMachine() (*machine.Machine, error) {
	m, err := machine.Here(func(text string) { fmt.Fprintln(c.err, text) })
	if err != nil {
		return nil, failf(exitFailed, "", "%v", err)
	}
	return m, nil
}

// adminContext makes sure that a context with the admin's identity of machine m exists, and uses the context for this
// command. It becomes the current context if there is none.
func (c *cli) adminContext(m *machine.Machine, name string) error {
	file, err := contexts.Load(contexts.Path(c.environ, c.home))
	if err != nil {
		return usagef("%v", err)
	}
	files := m.Admin().Paths()
	if i := slices.IndexFunc(file.Contexts, func(k contexts.Context) bool { return k.Cert == files.Cert }); i >= 0 {
		c.contextName = file.Contexts[i].Name
		return nil
	}
	if _, there := file.Get(name); there {
		return failf(exitFailed, "persysctl up --name OTHER", "context %q exists already and is for another cluster", name)
	}
	token, err := m.FirstToken()
	if err != nil {
		return failf(exitFailed, "persysctl context add "+name+" --server ADDRESS --tls-ca "+files.CA+" --tls-cert "+files.Cert+" --tls-key "+files.Key,
			"the addresses of the schedulers are not known: %v", err)
	}
	c.contextName = name
	return c.saveContext(file, contexts.Context{Name: name, Server: strings.Join(token.Schedulers, ","), CA: files.CA, Cert: files.Cert, Key: files.Key})
}

// rememberSchedulers writes the addresses of all schedulers of the cluster into the context of this command, so that
// persysctl works while some of them are down. It returns the addresses, separated by commas.
func (c *cli) rememberSchedulers(ctx context.Context) (string, error) {
	status, err := read(ctx, c, c.cluster.Status, &clusterv1.StatusRequest{})
	if err != nil {
		return "", err
	}
	var addrs []string
	for _, r := range status.GetReplicas() {
		if r.GetGrpcAddr() != "" {
			addrs = append(addrs, r.GetGrpcAddr())
		}
	}
	slices.Sort(addrs)
	server := strings.Join(addrs, ",")
	file, err := contexts.Load(contexts.Path(c.environ, c.home))
	if err != nil {
		return "", usagef("%v", err)
	}
	k, there := file.Get(c.contextName)
	if !there || server == "" || k.Server == server {
		return k.Server, nil
	}
	k.Server = server
	return server, c.saveContext(file, k)
}

// saveContext stores a context (connection to a cluster) in file. If the file has no current context, it becomes the
// current one.
func (c *cli) saveContext(file *contexts.File, k contexts.Context) error {
	if err := file.Put(k); err != nil {
		return usagef("%v", err)
	}
	if file.Current == "" {
		file.Current = k.Name
	}
	if err := file.Save(); err != nil {
		return failf(exitFailed, "", "%v", err)
	}
	return nil
}

// newToken makes a join token.
func (c *cli) newToken(ctx context.Context, role pki.Role, ttl time.Duration, uses uint32) (string, error) {
	r, err := change(ctx, c, c.trust.CreateToken, &clusterv1.CreateTokenRequest{Role: string(role), TtlSeconds: int64(ttl / time.Second), Uses: uses})
	return r.GetToken(), err
}

// eventually calls do again and again until it returns no error, for at most upLimit. what says what the command waits
// for; it appears in the output.
func (c *cli) eventually(ctx context.Context, what string, do func(context.Context) error) error {
	limit, cancel := context.WithTimeout(ctx, upLimit)
	defer cancel()
	tick := time.NewTicker(upEvery)
	defer tick.Stop()
	for said := false; ; said = true {
		err := do(limit)
		if err == nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if !said {
			fmt.Fprintln(c.err, what)
		}
		select {
		case <-limit.Done():
			return err
		case <-tick.C:
		}
	}
}

// joinMachine joins this machine to a cluster: for each token it starts, as a service, the program whose
// role the token has.
func (c *cli) joinMachine(ctx context.Context, tokens []string) error {
	m, err := c.thisMachine()
	if err != nil {
		return err
	}
	for _, t := range tokens {
		if err := m.Join(ctx, t); err != nil {
			return failf(exitFailed, "", "%v", err)
		}
	}
	host, _ := os.Hostname() // only shown
	c.say(host, screen.Good, "joined")
	return nil
}
