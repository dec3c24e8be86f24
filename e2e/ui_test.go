package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/persys/compute/e2e/harness"
	"github.com/persys/compute/testbed"
)

// screen is a pseudo terminal with a number of rows, on which a full-screen program (persysctl ui) runs.
type screen struct {
	*harness.Terminal
	rows uint16
}

func openScreen(t *testing.T) *screen {
	t.Helper()
	term, err := harness.NewTerminal(30, 120)
	must(t, err)
	t.Cleanup(func() {
		if err := term.Hide(); err != nil {
			t.Error(err)
		}
	})
	return &screen{term, 30}
}

// redraw makes the window one line lower or higher, so that the program draws the whole screen again and
// not only the changes.
func (x *screen) redraw(t *testing.T) {
	t.Helper()
	x.rows ^= 1
	must(t, x.Resize(x.rows, 120))
}

func (x *screen) settings(t *testing.T) unix.Termios {
	t.Helper()
	s, err := x.Settings()
	must(t, err)
	return s
}

func (x *screen) keys(t *testing.T, text string) {
	t.Helper()
	must(t, x.Type(text))
}

var controls = regexp.MustCompile(`\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[\]P][^\x07\x1b]*(\x07|\x1b\\)|\x1b.`)

// sees waits until the program draws a screen that contains all words of want at once.
func (x *screen) sees(t *testing.T, want ...string) {
	t.Helper()
	var drawn string
	from := len(x.Screen())
	must(t, testbed.Poll(t.Context(), settle, "the screen to show "+strings.Join(want, ", "), func(context.Context) error {
		drawn = controls.ReplaceAllString(x.Screen()[from:], " ")
		for _, w := range want {
			if !strings.Contains(drawn, w) {
				from = len(x.Screen())
				x.redraw(t)
				return fmt.Errorf("the screen lacks %q:\n%s", w, drawn)
			}
		}
		return nil
	}))
}

// TestScreen opens every screen of persysctl ui on a terminal. After the program has ended, also by a signal,
// the terminal must have the settings that it had before.
func TestScreen(t *testing.T) {
	grpc, _, _ := dev(t)
	env := append(os.Environ(), "PERSYS_SCHEDULER_ADDR="+grpc, "PERSYS_INSECURE=true", "TERM=xterm-256color")
	apply := exec.CommandContext(t.Context(), shipped(t).Ctl, "apply", "--wait", "-f", "-")
	apply.Env, apply.Stdin = env, strings.NewReader("id: web\ncount: 2\nresources: {cpu: 100m, memory: 64Mi}\ncontainer: {image: \"nginx:1.27\"}\n")
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, leave := range map[string]func(*screen, *exec.Cmd){
		"by its key":  func(x *screen, _ *exec.Cmd) { x.keys(t, "q") },
		"by a signal": func(_ *screen, cmd *exec.Cmd) { must(t, cmd.Process.Signal(syscall.SIGTERM)) },
	} {
		t.Run(name, func(t *testing.T) {
			x := openScreen(t)
			before := x.settings(t)
			cmd := exec.CommandContext(t.Context(), shipped(t).Ctl, "ui")
			cmd.Env = env
			must(t, x.Run(cmd))
			t.Cleanup(func() { _ = cmd.Process.Kill() })

			x.sees(t, "Workloads", "web-0", "web-1", "Running", "live")
			if now := x.settings(t); now.Lflag&unix.ECHO != 0 || now.Lflag&unix.ICANON != 0 {
				t.Errorf("while the screen is open the terminal must not echo, but its local flags are %#x", now.Lflag)
			}
			x.keys(t, "j\r") // select web-1 and open it
			x.sees(t, "web-1", "nginx:1.27", "Generation")
			x.keys(t, "q")
			x.keys(t, "y")
			x.sees(t, "why", "dev-1", "VERDICT")
			x.keys(t, "\x1b")
			x.sees(t, "[1", "web-0")
			x.keys(t, "l")
			x.sees(t, "logs", "web-1")
			x.keys(t, "q")
			x.keys(t, "2")
			x.sees(t, "[2", "dev-1", "Ready")
			x.keys(t, "\r")
			x.sees(t, "node", "dev-1", "Lease")
			x.keys(t, "q")
			x.keys(t, "3")
			x.sees(t, "[3", "WorkloadCreated")
			x.keys(t, "1/web-0\r")
			x.sees(t, "filter:", "web-0")
			x.keys(t, "\x1b")
			x.sees(t, "web-1")
			x.keys(t, "?")
			x.sees(t, "quit")
			x.keys(t, "x")
			x.sees(t, "[1")

			leave(x, cmd)
			if code, err := x.End(settle); err != nil || code != 0 {
				t.Errorf("persysctl ui ended with %d, %v", code, err)
			}
			if after := x.settings(t); after != before {
				t.Errorf("after the end of the screen the terminal settings must be as before, %+v, but are %+v", before, after)
			}
			must(t, testbed.Poll(t.Context(), settle, "the alternate screen to be left, and the cursor to be visible", func(context.Context) error {
				said := x.Screen()
				if !strings.Contains(said, "\x1b[?1049h") || strings.LastIndex(said, "\x1b[?1049l") < strings.LastIndex(said, "\x1b[?1049h") ||
					strings.LastIndex(said, "\x1b[?25h") < strings.LastIndex(said, "\x1b[?25l") {
					return fmt.Errorf("the terminal shows …%q", said[max(0, len(said)-200):])
				}
				return nil
			}))
		})
	}
}
