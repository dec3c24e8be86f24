package persysctl

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"k8s.io/client-go/util/jsonpath"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/cmd/persysctl/screen"
	"github.com/persys/compute/config"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
	"github.com/persys/compute/spec"
)

func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

type callOption = grpc.CallOption

// cli is one run of persysctl: its options, its connection and its output.
type cli struct {
	world
	settings settings
	loader   *config.Loader

	loginMu     *sync.Mutex // held while the token of a login is read or renewed
	configFile  string
	configUsed  string // path of the configuration file that was read
	contextName string // value of --context
	context     string // name of the context (stored connection) in use; "" for none
	output      string
	path        *jsonpath.JSONPath // the parsed template of -o jsonpath=TEMPLATE
	noColour    bool
	stale       bool
	verbose     bool

	paint, errPaint screen.Painter
	started         bool   // whether the command line was valid and the command has begun
	command         string // name of the command, without arguments
	trace           traced
	staleNoted      bool
	// Only tests set these three fields; their zero values select the defaults.
	pace   time.Duration  // pause between two outputs of --watch
	grace  time.Duration  // how long a session may last after Ctrl-C
	public *x509.CertPool // root certificates of public CAs, which may sign a gateway's certificate

	identity *pki.IdentityStore // the folder of the user's identity; nil if the certificate files are not in such a folder
	stop     func()             // stops the periodic renewal of the identity; nil if none runs

	documents map[string]*spec.Document // the specifications that were read, by workload id, to give the file and line of a refused field

	conn    link
	direct  *dial.Conn // the connection if it goes directly to schedulers; nil if it goes to a gateway
	files   *pki.Files // the user's certificate and key for the direct connection; nil without TLS
	control controlv1.AgentControlClient
	cluster clusterv1.ClusterClient
	trust   clusterv1.TrustClient
}

// run runs persysctl and returns its exit code.
func run(ctx context.Context, w world, args []string) int {
	return runWith(ctx, &cli{world: w}, args)
}

func runWith(ctx context.Context, c *cli, args []string) int {
	c.loginMu = &sync.Mutex{}
	w := c.world
	c.errPaint = screen.Painter(w.colour(w.errTerm))
	root, err := c.root()
	if err != nil {
		return c.report(err)
	}
	root.SetArgs(args)
	root.SetIn(w.in)
	root.SetOut(w.out)
	root.SetErr(w.err)
	cmd, err := root.ExecuteContextC(ctx)
	c.close()
	if err != nil && !c.started {
		err = c.misuse(root, cmd, args, err)
	}
	return c.report(err)
}

// parseError matches the end of pflag's error for a value that is not a number.
var parseError = regexp.MustCompile(`strconv\.Parse(\w+): parsing .*`)

// misuse rewords an error of cobra, which parses the command line, and adds a hint.
func (c *cli) misuse(root, cmd *cobra.Command, args []string, err error) error {
	text, _, _ := strings.Cut(err.Error(), "\n")
	if m := parseError.FindStringSubmatchIndex(text); m != nil {
		rule := map[string]string{"Int": "must be a whole number", "Uint": "must be a whole number, 0 or more", "Bool": "must be true or false"}
		text = text[:m[0]] + cmp.Or(rule[text[m[2]:m[3]]], "cannot be read")
	}
	f := &failure{code: exitUsage, text: text, hint: cmd.CommandPath() + " --help"}
	if word, ok := strings.CutPrefix(text, "unknown command "); ok {
		f.hint = nearestCommand(root, wordsFrom(args, strings.Trim(strings.Fields(word)[0], `"`)))
	} else if word, ok := strings.CutPrefix(text, "unexpected argument "); ok && cmd.HasSubCommands() {
		if ours, ok := ofNoun([]string{cmd.Name(), strings.Trim(word, `"`)}); ok {
			f.hint = "persysctl " + ours
		}
	}
	return f
}

// wordsFrom returns those words of a command line that follow word, and word itself. It leaves out flags.
func wordsFrom(args []string, word string) []string {
	out := []string{word}
	if i := slices.Index(args, word); i >= 0 {
		for _, a := range args[i+1:] {
			if strings.HasPrefix(a, "-") {
				break
			}
			out = append(out, a)
		}
	}
	return out
}

// Groups of commands in the help text.
const (
	groupWorkloads = "workloads"
	groupNodes     = "nodes"
	groupCluster   = "cluster"
	groupTrust     = "trust"
	groupHere      = "here"
	groupPrograms  = "programs"
)

func (c *cli) root() (*cobra.Command, error) {
	root := &cobra.Command{
		Use:   c.name,
		Short: "Run workloads on a Persys cluster and see where and why they run",
		Long: `persysctl talks to the schedulers of a Persys cluster, directly or through a gateway.

Which cluster it asks: "persysctl help connection". What its exit codes mean:
"persysctl help exit-codes". A full-screen view of the cluster: "persysctl ui".`,
		Example: `  persysctl context add home --server 10.0.0.1 --tls-ca ca.pem --tls-cert me.pem --tls-key me-key.pem
  persysctl apply -f web.yaml --wait
  persysctl list --watch
  persysctl why web
  persysctl logs web -f`,
		Version:            c.version,
		SilenceUsage:       true,
		SilenceErrors:      true,
		DisableSuggestions: true,
		PersistentPreRunE:  c.prepare,
	}
	root.SetVersionTemplate(c.name + " {{.Version}}\n")
	var err error
	if c.loader, err = config.New(&c.settings); err != nil {
		return nil, err
	}
	flags := root.PersistentFlags()
	flags.SortFlags = false
	c.loader.AddFlags(flags)
	flags.StringVar(&c.configFile, "config", "", "configuration file (default ~/.persys/config.yaml)")
	flags.StringVar(&c.contextName, "context", "", "`NAME` of the context to use, see persysctl context (PERSYS_CONTEXT)")
	flags.StringVarP(&c.output, "output", "o", outTable, "table, wide, json, yaml or jsonpath=TEMPLATE")
	flags.BoolVar(&c.stale, "stale", false, "read from any replica, even without a leader; the answer may be old")
	flags.BoolVar(&c.noColour, "no-color", false, "print no colours, as with NO_COLOR")
	flags.BoolVarP(&c.verbose, "verbose", "v", false, "print details of the connection and of errors")
	if err := root.RegisterFlagCompletionFunc("output", completeOutput); err != nil {
		return nil, err
	}

	root.AddGroup(&cobra.Group{ID: groupWorkloads, Title: "Workloads:"},
		&cobra.Group{ID: groupNodes, Title: "Nodes:"},
		&cobra.Group{ID: groupCluster, Title: "Cluster:"},
		&cobra.Group{ID: groupTrust, Title: "Trust:"},
		&cobra.Group{ID: groupHere, Title: "On this machine:"})
	add := func(group string, cmds ...*cobra.Command) {
		for _, cmd := range cmds {
			cmd.GroupID = group
			root.AddCommand(cmd)
		}
	}
	add(groupWorkloads, c.applyCommand(), c.runCommand(), c.planCommand(), c.getCommand(), c.listCommand(), c.historyCommand(), c.diffCommand(), c.rollbackCommand(), c.rolloutCommand(), c.scaleCommand(), c.cronCommand(), c.jobCommand(), c.deleteCommand(), c.retryCommand(),
		c.startCommand(), c.stopCommand(), c.restartCommand(), c.logsCommand(), c.execCommand(), c.consoleCommand(), c.whyCommand(), c.whyNotCommand(), c.actionsCommand(), c.composeCommand(), c.networkCommand(), c.traceCommand(), c.secretCommand(), c.configCommand())
	add(groupNodes, c.nodesCommand(), c.nodeCommand(), c.topCommand(), c.cordonCommand(), c.uncordonCommand(), c.drainCommand(), c.rebalanceCommand(), c.driftCommand(), c.volumeCommand())
	add(groupCluster, c.uiCommand(), c.summaryCommand(), c.statusCommand(), c.eventsCommand(), c.transferCommand(), c.replicaCommand(), c.modeCommand(), c.backupCommand(), c.recoveryCommand(), c.mirrorCommand())
	add(groupTrust, c.authCommand(), c.loginCommand(), c.logoutCommand(), c.tokenCommand(), c.identityCommand(), c.auditCommand(), c.caCommand(), c.joinCommand(), c.roleCommand(), c.accountCommand(), c.sessionCommand(), c.namespaceCommand(), c.policyCommand())
	add(groupHere, c.upCommand(), c.contextCommand(), c.importCommand(), c.clusterKeyCommand(), c.devCertsCommand(), c.schemaCommand(), c.versionCommand())
	if len(c.programs) > 0 {
		root.AddGroup(&cobra.Group{ID: groupPrograms, Title: "Programs:"})
	}
	for _, p := range c.programs {
		add(groupPrograms, p.command())
	}
	root.SetCompletionCommandGroupID(groupHere)
	root.AddCommand(c.docsCommand(root), c.workloadCommand())
	root.AddCommand(topics()...)
	return root, root.RegisterFlagCompletionFunc("context", c.completeContext)
}

// prepare runs before every command, after its arguments are parsed. It loads the settings and checks the
// output format.
func (c *cli) prepare(cmd *cobra.Command, _ []string) error {
	if err := c.checkOutput(); err != nil {
		return err
	}
	c.started, c.command = true, cmd.CommandPath()
	c.paint = screen.Painter(c.colour(c.outTerm) && !c.noColour)
	c.errPaint = screen.Painter(c.colour(c.errTerm) && !c.noColour)
	return nil
}

// online returns the RunE function of a command that needs a connection: it connects and then calls do.
func (c *cli) online(do func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := c.connect(cmd.Context()); err != nil {
			return err
		}
		return do(cmd.Context(), args)
	}
}

// args returns a function that checks the number of arguments of a command: at least least and at most most; -1 means
// no upper limit. names are the names of the arguments, for errors.
func args(least, most int, names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, given []string) error {
		switch {
		case len(given) < least:
			return fmt.Errorf("%s is missing", names[len(given)])
		case most >= 0 && len(given) > most:
			return fmt.Errorf("unexpected argument %q", given[most])
		}
		for i, a := range given {
			if strings.TrimSpace(a) == "" {
				return fmt.Errorf("%s must not be blank", names[min(i, len(names)-1)])
			}
		}
		return nil
	}
}
