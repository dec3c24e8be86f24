package driver

import (
	"context"
	"io"
)

// Execer is a Driver that can run a command inside a workload that runs. It is optional.
type Execer interface {
	// Exec starts a command. ctx bounds the start only; the session goes on until the command ends
	// or Close. A workload that does not run is class RuntimeResourceMissing, a service that is not
	// named InvalidSpecification. A command that is not there begins and ends, with the code 126 or
	// 127 and the reason as its output.
	Exec(ctx context.Context, id ID, options ExecOptions) (Session, error)
}

// Consoler is a Driver whose workloads have a console of their own: the serial line of a machine, the
// terminal of a container's first process. It is optional.
type Consoler interface {
	// Console opens the console. ctx bounds the opening only. A workload that does not run is class
	// RuntimeResourceMissing, one without a console InvalidSpecification.
	Console(ctx context.Context, id ID, options ConsoleOptions) (Session, error)
}

// ExecOptions say what to run.
type ExecOptions struct {
	// Command is the program and its arguments; no shell looks at them. Not empty.
	Command []string
	// Service is one of a Compose stack's; empty where there is only one.
	Service string
	// TTY gives the command a terminal of Size: then it has one output, and its input's end is a
	// byte (^D), as are its signals.
	TTY  bool
	Size TerminalSize
	// Input connects the command's input. Without it, it is at its end at once.
	Input bool
}

// ConsoleOptions say which console.
type ConsoleOptions struct {
	// Service is one of a Compose stack's.
	Service string
	Size    TerminalSize
}

// TerminalSize is a terminal's, in characters; zero is unknown.
type TerminalSize struct{ Rows, Columns uint16 }

// Session is one command or console that somebody is connected to. Output and Exit are called from
// one goroutine, the rest from any other, also while Output waits.
type Session interface {
	// Output waits for the next piece of output. Its bytes stand until the next call. After the last
	// piece, or after Close, it is io.EOF.
	Output() (Output, error)
	// Write gives input. It may wait for the command to read.
	io.Writer
	// CloseWrite ends the input.
	CloseWrite() error
	// Resize tells the terminal its new size; without a terminal it does nothing.
	Resize(ctx context.Context, size TerminalSize) error
	// Signal sends a signal by its name: INT, TERM, HUP, …
	Signal(ctx context.Context, name string) error
	// Exit is the command's exit code, 128 and the signal's number if one ended it; 0 for a
	// console. It is called after the last Output.
	Exit(ctx context.Context) (int, error)
	// Close ends the session. A command that still runs is told to hang up and killed soon after,
	// as far as the engine lets us reach it; a console's workload goes on. Closing twice is allowed.
	Close() error
}

// Output is a piece of a session's output.
type Output struct {
	Data []byte
	// Stderr says which of two outputs; a terminal has only the other one.
	Stderr bool
}
