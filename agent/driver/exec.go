package driver

import (
	"context"
	"io"
)

// Execer is implemented by drivers that can run a command inside a running workload.
type Execer interface {
	// Exec starts a command. ctx bounds only the start; the session lasts until the command ends or Close is
	// called. The error is of class RuntimeResourceMissing if the workload does not run, and
	// InvalidSpecification if a stack needs a service name. If the command does not exist, the session starts
	// and ends with exit code 126 or 127 and the reason as its output.
	Exec(ctx context.Context, id ID, options ExecOptions) (Session, error)
}

// Consoler is implemented by drivers whose workloads have a console: the serial line of a virtual
// machine, or the terminal of a container's first process.
type Consoler interface {
	// Console opens the console. ctx bounds only the opening. The error is of class RuntimeResourceMissing if
	// the workload does not run, and InvalidSpecification if it has no console.
	Console(ctx context.Context, id ID, options ConsoleOptions) (Session, error)
}

// ProcessFinder is implemented by drivers whose workloads are processes of this machine.
type ProcessFinder interface {
	// Process returns the number of the first process of a running workload. The error is of class
	// RuntimeResourceMissing if the workload does not run.
	Process(ctx context.Context, id ID) (pid int, err error)
}

// ExecOptions describe the command to run.
type ExecOptions struct {
	// Command is the program and its arguments; no shell interprets them. Not empty.
	Command []string
	// Service names one service of a Compose stack; may be empty if the stack has only one service.
	Service string
	// TTY gives the command a terminal of Size. A terminal has only one output stream. The end of input (^D)
	// and signals (such as ^C) are sent to it as bytes of the input.
	TTY  bool
	Size TerminalSize
	// Input connects the command's standard input to the session. If it is false, the command reads
	// end of file at once.
	Input bool
}

// ConsoleOptions select a console.
type ConsoleOptions struct {
	// Service names one service of a Compose stack; may be empty if the stack has only one service.
	Service string
	Size    TerminalSize
}

// TerminalSize is the size of a terminal in characters; zero means unknown.
type TerminalSize struct{ Rows, Columns uint16 }

// Session is a connection to one command or console. Output and Exit are called from one goroutine.
// The other methods may be called from any goroutine, also while Output blocks.
type Session interface {
	// Output blocks until the next piece of output. Its bytes are valid until the next call. After the
	// last piece, or after Close, it returns io.EOF.
	Output() (Output, error)
	// Write sends input. It may block until the command reads.
	io.Writer
	// CloseWrite closes the command's input.
	CloseWrite() error
	// Resize sets the size of the session's terminal. It does nothing for a session without terminal.
	Resize(ctx context.Context, size TerminalSize) error
	// Signal sends a signal by name: INT, TERM, HUP, …
	Signal(ctx context.Context, name string) error
	// Exit returns the command's exit code, or 128 plus the signal number if a signal ended the command. For
	// a console it returns 0. Call Exit after the last Output.
	Exit(ctx context.Context) (int, error)
	// Close ends the session. A command that still runs gets SIGHUP and is killed soon after, as far as the
	// engine supports that. Closing a console does not end the workload. Close may be called twice.
	Close() error
}

// Output is a piece of a session's output.
type Output struct {
	Data []byte
	// Stderr is true for the error stream; a terminal has only standard output.
	Stderr bool
}
