// Command persys is every program of Persys in one file. The name under which it is called, or its first
// argument, selects the program:
//
//	persys-scheduler, persys scheduler    one replica of the control plane
//	persys-agent, persys agent            runs the workloads of one machine
//	persys-gateway, persys gateway        REST API and web console
//	persys dev                            a whole cluster in one process, for a laptop
//	persysctl, persys WORD                the command line
//
// In `persys dev`, three schedulers form a Raft group and one agent runs workloads, on the local Docker
// engine or, without
// one, simulated. All ports are on the loopback address, and all files in a temporary folder. The first
// scheduler and the web console have fixed ports; the other ports are chosen from the free ones.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/moby/moby/client"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/persys/compute/agent/driver/compose/gitfetch"
	"github.com/persys/compute/child"
	"github.com/persys/compute/cmd/internal/agentd"
	"github.com/persys/compute/cmd/internal/gatewayd"
	"github.com/persys/compute/cmd/internal/persysctl"
	"github.com/persys/compute/cmd/internal/schedulerd"
	"github.com/persys/compute/cmd/internal/setup"
	"github.com/persys/compute/config"
	"github.com/persys/compute/replica"
	"github.com/persys/compute/stack"
)

// version is set by the linker.
var version = "dev"

func main() {
	child.Serve(stack.Task, gitfetch.Task)
	name, args := called(os.Args)
	os.Args = args
	switch name {
	case schedulerd.Name:
		setup.Main(name, func(ctx context.Context) error { return schedulerd.Main(ctx, version) })
	case agentd.Name:
		setup.Main(name, func(ctx context.Context) error { return agentd.Main(ctx, version) })
	case gatewayd.Name:
		setup.Main(name, func(ctx context.Context) error { return gatewayd.Main(ctx, version) })
	case toolsName:
		setup.Main("persys", tools().ExecuteContext)
	default:
		os.Exit(persysctl.Main(name, version, programs()...))
	}
}

// tools returns the commands that only the program persys has.
func tools() *cobra.Command {
	cmd := &cobra.Command{
		Use: "persys", Short: "a Persys cluster in one process",
		SilenceErrors: true, SilenceUsage: true,
	}
	var opt options
	dev := &cobra.Command{
		Use: "dev", Short: "three schedulers and one agent, in one process, on loopback", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runDev(cmd.Context(), opt) },
	}
	dev.Flags().IntVar(&opt.port, "port", 8085, "gRPC port of the first scheduler, 0 = any free one")
	dev.Flags().IntVar(&opt.httpPort, "http-port", 8551, "port of the web console and the REST API, 0 = any free one")
	dev.Flags().BoolVar(&opt.simulate, "simulate", false, "simulate workloads even if there is a Docker engine")
	dev.Flags().StringVar(&opt.level, "log-level", "error", "debug, info, warn or error")
	cmd.AddCommand(dev, envCommand(), metricsCommand(), apiCommand())
	return cmd
}

type options struct {
	port     int
	httpPort int
	simulate bool
	level    string
}

func runDev(ctx context.Context, opt options) (err error) {
	if opt.port < 0 || opt.port > 65535 {
		return fmt.Errorf("--port %d must be 0 to 65535", opt.port)
	}
	if opt.httpPort < 0 || opt.httpPort > 65535 {
		return fmt.Errorf("--http-port %d must be 0 to 65535", opt.httpPort)
	}
	log, err := setup.Logger(os.Stderr, opt.level, "text")
	if err != nil {
		return fmt.Errorf("--log-level: %w", err)
	}
	dir, err := os.MkdirTemp("", "persys-dev-")
	if err != nil {
		return err
	}
	defer func() {
		// Containers of a stack may have left files in its folder that belong to other users.
		if left := os.RemoveAll(dir); left != nil {
			log.Warn("some files in the temporary folder could not be removed", "folder", dir, "err", left)
		}
	}()

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	defer func() {
		stop()
		err = errors.Join(err, g.Wait())
	}()
	group, err := startReplicas(ctx, g, dir, opt.port, log)
	if err != nil {
		return err
	}
	addrs := make([]string, len(group))
	for i, r := range group {
		addrs[i] = r.GRPCAddr()
	}
	how := "the local Docker engine"
	acfg, err := agentConfig(dir, addrs)
	if err != nil {
		return err
	}
	if opt.simulate || !dockerAnswers(ctx) {
		acfg.Docker, acfg.Simulate = false, filepath.Join(dir, "engine")
		how = "a simulated engine: nothing really runs"
	}
	g.Go(func() error { return agentd.Run(ctx, acfg, version, log) })

	console, err := gatewayd.Start(ctx, gatewayd.Config{
		Insecure: true, HTTPAddr: net.JoinHostPort("127.0.0.1", strconv.Itoa(opt.httpPort)), PublicAddr: "none", Schedulers: addrs,
	}, version, log)
	if err != nil {
		return fmt.Errorf("%w; persys dev --http-port 0 takes any free port", err)
	}
	g.Go(func() error { return console.Run(ctx) })

	lead, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	leader, err := group[0].Node().WaitLeader(lead)
	if err != nil {
		return fmt.Errorf("the schedulers elected no leader within 30 s: %w", err)
	}
	fmt.Printf("Persys is up: 3 schedulers (leader %s), 1 agent on %s.\n", leader.Name, how)
	fmt.Printf("Nothing is encrypted, and every program of this machine may do everything.\n\n")
	fmt.Printf("  http://%s/ in a browser shows the console\n\n", console.Addr())
	fmt.Printf("  export PERSYS_SCHEDULER_ADDR=%s PERSYS_INSECURE=true\n", addrs[0])
	fmt.Printf("  persysctl status\n  persysctl apply -f examples/hello.yaml --wait\n\nCtrl-C stops it and removes its data; containers that it started keep running.\n")
	<-ctx.Done()
	return nil
}

// replicas is the number of schedulers that `persys dev` starts.
const replicas = 3

func replicaName(i int) string { return "dev-s" + strconv.Itoa(i+1) }

// agentConfig returns the default configuration of an agent, with free ports and with all folders below dir.
func agentConfig(dir string, schedulers []string) (cfg agentd.Config, err error) {
	if err := config.Defaults(&cfg); err != nil {
		return cfg, err
	}
	cfg.Insecure, cfg.Schedulers = true, schedulers
	cfg.NodeID, cfg.StatePath = "dev-1", filepath.Join(dir, "agent", "state.db")
	cfg.GRPCPort, cfg.MetricsPort = 0, 0
	cfg.DockerHost = "" // with an empty DockerHost the Docker client uses DOCKER_HOST, as dockerAnswers does
	cfg.VM = false      // disks of virtual machines would remain after persys dev has ended
	cfg.Fencer = "off"  // a fencer is useless here: agent and schedulers run in one process and end together
	for i := range replicas {
		cfg.Protected = append(cfg.Protected, filepath.Join(dir, replicaName(i)))
	}
	return cfg, nil
}

// startReplicas starts three schedulers that form one cluster. They start one after another: each scheduler opens free
// ports, and the next scheduler gets the chosen addresses to join.
func startReplicas(ctx context.Context, g *errgroup.Group, dir string, port int, log *slog.Logger) ([]*replica.Replica, error) {
	var out []*replica.Replica
	var join []string
	stacks := stack.NewLoader(stack.Options{})
	for i := range replicas {
		name := replicaName(i)
		cfg, err := replica.DefaultConfig()
		if err != nil {
			return nil, err
		}
		cfg.Stacks = stacks
		cfg.Insecure, cfg.Name, cfg.DataDir = true, name, filepath.Join(dir, name)
		cfg.BootstrapExpect, cfg.Join, cfg.EtcdEndpoints = 3, join, []string{"none"}
		cfg.RaftAddr, cfg.GossipAddr, cfg.DNSAddr = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
		cfg.GRPCPort, cfg.MetricsPort = 0, 0
		if i == 0 {
			cfg.GRPCPort = port
		}
		r, err := replica.Start(ctx, cfg, version, log)
		if err != nil {
			var op *net.OpError
			if i == 0 && errors.As(err, &op) {
				return nil, fmt.Errorf("%w; another one may be running: persys dev --port 0 takes any free port", err)
			}
			return nil, err
		}
		g.Go(func() error { return r.Run(ctx) })
		out = append(out, r)
		join = append(join, r.GossipAddr())
	}
	return out, nil
}

// dockerAnswers reports whether a Docker engine answers at the address that the agent would use.
func dockerAnswers(ctx context.Context) bool {
	cli, err := client.New(client.FromEnv)
	if err != nil {
		return false
	}
	defer cli.Close()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_, err = cli.Ping(ctx, client.PingOptions{})
	return err == nil
}
