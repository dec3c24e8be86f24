package main

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

// exitBroken is the exit code of a session that ended without its command's.
const exitBroken = 255

// leave is the key that leaves a console: Ctrl-].
const leave = 0x1d

// interruptGrace is what a command gets to end after Ctrl-C.
const interruptGrace = 10 * time.Second

func (c *cli) execCommand() *cobra.Command {
	open := &clusterv1.ExecOpen{}
	cmd := &cobra.Command{
		Use: "exec WORKLOAD [--service SERVICE] -- COMMAND [ARGS]", Short: "Run a command in a workload that runs",
		Long: `Run a command in a workload that runs. Its exit code is this program's; 255 means
that the session broke off. Nothing but the command is run: for a shell's words and
pipes name a shell. Who ran what where is kept (persysctl audit).

Ctrl-C goes to the command. What it leaves running ends with the session.`,
		Example: "  persysctl exec web -- cat /etc/hosts\n  persysctl exec -it web -- sh\n  persysctl exec shop --service db -i -- psql < dump.sql",
		Args:    args(2, -1, "WORKLOAD", "COMMAND"), ValidArgsFunction: c.completeWorkload,
		RunE: c.online(func(ctx context.Context, args []string) error {
			open.WorkloadId, open.Command = args[0], args[1:]
			return c.session(ctx, open)
		}),
	}
	f := cmd.Flags()
	f.SetInterspersed(true)
	f.BoolVarP(&open.Input, "stdin", "i", false, "give the command what comes in here")
	f.BoolVarP(&open.Tty, "tty", "t", false, "give the command a terminal")
	f.StringVar(&open.Service, "service", "", "the service of a Compose workload")
	return cmd
}

func (c *cli) consoleCommand() *cobra.Command {
	open := &clusterv1.ExecOpen{Console: true, Input: true, Tty: true}
	cmd := &cobra.Command{
		Use: "console WORKLOAD", Short: "Connect to the console of a machine, or of a container",
		Long: `Connect to the console of a workload: the serial line of a virtual machine, or what
the first process of a container says. Ctrl-] leaves it; the workload goes on.`,
		Example: "  persysctl console db-vm\n  persysctl console shop --service web",
		Args:    args(1, 1, "WORKLOAD"), ValidArgsFunction: c.completeWorkload,
		RunE: c.online(func(ctx context.Context, args []string) error {
			open.WorkloadId = args[0]
			return c.session(ctx, open)
		}),
	}
	cmd.Flags().StringVar(&open.Service, "service", "", "the service of a Compose workload")
	return cmd
}

// session runs one session to its end. The command's exit code becomes the program's.
func (c *cli) session(ctx context.Context, open *clusterv1.ExecOpen) error {
	// Ctrl-C is the command's; only what comes after it ends the session.
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	tty := open.GetTty() && open.GetInput() && c.inTerm && c.raw != nil
	if open.GetTty() && c.size != nil {
		open.Size = terminalSize(c.size())
	}
	// Before it has opened nothing is known of the command, so an interruption is the end.
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
		time.AfterFunc(cmp.Or(c.grace, interruptGrace), cancel)                                    // first: who reads no input takes no signal
		_ = say.say(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_Signal{Signal: "INT"}}) // it may be over
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
	if err != nil && !errors.Is(err, io.EOF) { // EOF: Recv tells why
		return nil, nil, err
	}
	first, err := stream.Recv()
	return say, first, err
}

// hear writes what the session says until it ends.
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

// typed sends what comes in until it ends. It may wait for ever for a person who types nothing more;
// the program ends without it.
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
				return // over
			}
		}
		if at >= 0 {
			close(left)
			return
		}
		if err != nil {
			_ = say.say(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_EndInput{EndInput: true}}) // it may be over
			return
		}
	}
}

// sayer lets several speak on one stream.
type sayer struct {
	mu     sync.Mutex
	stream clusterv1.Cluster_ExecClient
}

func (s *sayer) say(m *clusterv1.ExecRequest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stream.Send(m)
}

// resize passes on the terminal's size whenever it changes, until ctx ends.
func (s *sayer) resize(ctx context.Context, changed <-chan struct{}, size func() (columns, rows int)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		if z := terminalSize(size()); z != nil {
			_ = s.say(&clusterv1.ExecRequest{Message: &clusterv1.ExecRequest_Resize{Resize: z}}) // it may be over
		}
	}
}

func terminalSize(columns, rows int) *clusterv1.TerminalSize {
	if columns <= 0 || rows <= 0 || columns > 0xffff || rows > 0xffff {
		return nil
	}
	return &clusterv1.TerminalSize{Rows: uint32(rows), Columns: uint32(columns)}
}
