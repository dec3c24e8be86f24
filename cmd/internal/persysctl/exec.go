package persysctl

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
)

// exitBroken is the exit code of persysctl exec and console if the session ends before its command.
const exitBroken = 255

// leave is the key Ctrl-], which ends a console session.
const leave = 0x1d

// interruptGrace is how long a command may take to end after Ctrl-C.
const interruptGrace = 10 * time.Second

func (c *cli) execCommand() *cobra.Command {
	open := &clusterv1.ExecOpen{}
	cmd := &cobra.Command{
		Use: "exec WORKLOAD [--service SERVICE] -- COMMAND [ARGS]", Short: "Run a command in a running workload",
		Long: `Run a command in a running workload, and exit with its exit code; 255 means that the
session was interrupted. The command is not run by a shell: for pipes and variables,
run a shell. Sessions are recorded (persysctl audit).

Ctrl-C is sent to the command. Processes that it leaves running end with the session.`,
		Example: "  persysctl exec web -- cat /etc/hosts\n  persysctl exec -it web -- sh\n  persysctl exec shop --service db -i -- psql < dump.sql",
		Args:    args(2, -1, "WORKLOAD", "COMMAND"), ValidArgsFunction: c.completeWorkload,
		RunE: c.online(func(ctx context.Context, args []string) error {
			open.WorkloadId, open.Command = args[0], args[1:]
			return c.session(ctx, open)
		}),
	}
	f := cmd.Flags()
	f.SetInterspersed(true)
	f.BoolVarP(&open.Input, "stdin", "i", false, "pass standard input to the command")
	f.BoolVarP(&open.Tty, "tty", "t", false, "give the command a terminal")
	f.StringVar(&open.Service, "service", "", "service of a Compose workload")
	return cmd
}

func (c *cli) consoleCommand() *cobra.Command {
	open := &clusterv1.ExecOpen{Console: true, Input: true, Tty: true}
	var web webConsole
	cmd := &cobra.Command{
		Use: "console [WORKLOAD]", Short: "Make a link to the web console, or connect to the console of a workload",
		Long: `Without WORKLOAD: print a link that signs you in to the web console, with your own rights.
It works once, for ten minutes. The session ends after --ttl, with persysctl session end,
or when you are revoked.

With WORKLOAD: connect to the serial line of a virtual machine, or to the first process
of a container. Ctrl-] leaves it, and the workload goes on.`,
		Example: "  persysctl console\n  persysctl console --gateway https://gateway.example.com:8551 --open\n  persysctl console db-vm\n  persysctl console shop --service web",
		Args:    args(0, 1, "WORKLOAD"), ValidArgsFunction: c.completeWorkload,
	}
	f := cmd.Flags()
	f.StringVar(&open.Service, "service", "", "service of a Compose workload")
	f.StringVar(&web.gateway, "gateway", "", "address of the gateway, https://HOST[:PORT]; default: a gateway of the cluster that answers on port 8551")
	f.DurationVar(&web.ttl, "ttl", 12*time.Hour, "how long the session at the web console lasts, at most 24h")
	f.BoolVar(&web.open, "open", false, "open the link in the browser of this machine")
	cmd.RunE = c.online(func(ctx context.Context, args []string) error {
		if len(args) == 0 {
			if f.Changed("service") {
				return usagef("--service is for the console of a workload: name the workload")
			}
			return c.webConsole(ctx, web)
		}
		for _, name := range []string{"gateway", "ttl", "open"} {
			if f.Changed(name) {
				return usagef("--%s is for the web console: leave the workload out", name)
			}
		}
		open.WorkloadId = args[0]
		return c.session(ctx, open)
	})
	return cmd
}

// session runs one session (a command or console in a workload) to its end. The returned error contains the
// exit code of the command.
func (c *cli) session(ctx context.Context, open *clusterv1.ExecOpen) error {
	// Ctrl-C is sent to the command in the workload, so it must not end the context of the session.
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	tty := open.GetTty() && open.GetInput() && c.inTerm && c.raw != nil
	if open.GetTty() && c.size != nil {
		open.Size = terminalSize(c.size())
	}
	// Until the session is open, no command runs in the workload, so Ctrl-C ends persysctl itself.
	unhook := context.AfterFunc(ctx, cancel)
	say, first, err := c.openSession(life, open)
	if !unhook() {
		return &failure{code: exitInterrupted, text: "interrupted"}
	}
	if err != nil {
		return c.explain(err, false)
	}
	if first.GetOpened() == nil {
		return failf(exitBroken, "", "the session did not open")
	}
	stream := say.stream
	if tty {
		restore, err := c.raw()
		if err != nil {
			return failf(exitFailed, "leave -t out", "the terminal cannot be set up: %v", err)
		}
		defer restore()
		if open.GetConsole() {
			fmt.Fprintf(c.err, "connected to the console of %s on %s; Ctrl-] leaves\r\n", open.GetWorkloadId(), first.GetOpened().GetNodeId())
		}
	}
	left := make(chan struct{})
	if open.GetInput() {
		go c.typed(say, open.GetConsole() && tty, left)
	}
	if tty && c.resized != nil {
		go say.resize(life, c.resized(life), c.size)
	}
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(cmp.Or(c.grace, interruptGrace), cancel)                                    // this timer starts before the signal is sent, because sending waits while the command reads no input
		_ = say.say(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_Signal{Signal: "INT"}}) // an error means that the session has ended
	})()
	type end struct {
		code int32
		err  error
	}
	done := make(chan end, 1)
	go func() {
		code, err := c.hear(stream)
		done <- end{code, err}
	}()
	var e end
	select {
	case e = <-done:
	case <-left:
		cancel()
		<-done
		return nil
	}
	switch {
	case e.err == nil && e.code == 0:
		return nil
	case e.err == nil:
		return &failure{code: int(e.code), text: fmt.Sprintf("exit code %d", e.code), quiet: true}
	case ctx.Err() != nil && status.Code(e.err) == codes.Canceled:
		return &failure{code: exitInterrupted, text: "interrupted"}
	}
	f := c.explain(e.err, false)
	f.code = exitBroken
	if status.Code(e.err) == codes.DeadlineExceeded {
		f.text, f.hint = status.Convert(e.err).Message(), ""
	}
	return f
}

func (c *cli) openSession(ctx context.Context, open *clusterv1.ExecOpen) (*sayer, *clusterv1.ExecResponse, error) {
	stream, err := c.cluster.Exec(ctx)
	if err != nil {
		return nil, nil, err
	}
	say := &sayer{stream: stream}
	err = say.say(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_Open{Open: open}})
	if err != nil && !errors.Is(err, io.EOF) { // after a Send returned io.EOF, Recv returns the reason
		return nil, nil, err
	}
	first, err := stream.Recv()
	return say, first, err
}

// hear writes the output of the session to stdout and stderr. When the exit code of the command arrives, it returns
// the exit code.
func (c *cli) hear(stream clusterv1.Cluster_ExecClient) (int32, error) {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return 0, status.Error(codes.Unavailable, "the session ended without an exit code")
		}
		if err != nil {
			return 0, err
		}
		switch b := m.GetMessage().(type) {
		case *clusterv1.ExecResponse_Output:
			to := c.out
			if b.Output.GetStream() == "stderr" {
				to = c.err
			}
			if _, err := to.Write(b.Output.GetData()); err != nil {
				return 0, err
			}
		case *clusterv1.ExecResponse_Exit:
			return b.Exit.GetCode(), nil
		}
	}
}

// typed sends the user's input to the session until the input ends. A read from a terminal cannot be
// interrupted, so persysctl exits without waiting for this function.
func (c *cli) typed(say *sayer, console bool, left chan<- struct{}) {
	buffer := make([]byte, 16<<10)
	for {
		n, err := c.in.Read(buffer)
		data := buffer[:n]
		at := -1
		if console {
			if at = bytes.IndexByte(data, leave); at >= 0 {
				data = data[:at]
			}
		}
		if len(data) > 0 {
			if say.say(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_Input{Input: data}}) != nil {
				return // the session has ended
			}
		}
		if at >= 0 {
			close(left)
			return
		}
		if err != nil {
			_ = say.say(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_EndInput{EndInput: true}}) // an error means that the session has ended
			return
		}
	}
}

// sayer serializes the messages that several goroutines send on one stream.
type sayer struct {
	mu     sync.Mutex
	stream clusterv1.Cluster_ExecClient
}

func (s *sayer) say(m *clusterv1.ExecRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stream.Send(m)
}

// resize sends the size of the terminal to the session whenever it changes, until ctx ends.
func (s *sayer) resize(ctx context.Context, changed <-chan struct{}, size func() (columns, rows int)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		if z := terminalSize(size()); z != nil {
			_ = s.say(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_Resize{Resize: z}}) // an error means that the session has ended
		}
	}
}

func terminalSize(columns, rows int) *clusterv1.TerminalSize {
	if columns <= 0 || rows <= 0 || columns > 0xffff || rows > 0xffff {
		return nil
	}
	return &clusterv1.TerminalSize{Rows: uint32(rows), Columns: uint32(columns)}
}
