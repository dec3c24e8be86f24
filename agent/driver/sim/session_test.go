package sim

import (
	"context"
	"io"
	"testing"

	"github.com/persys/compute/agent/driver"
)

// If the user types after the program of a session has ended, the terminal drops the echo of the input.
func TestInputAfterTheProgramEnded(t *testing.T) {
	s := &session{tty: true, input: true, pieces: make(chan driver.Output, 256), ended: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(t.Context())
	s.in, s.typed = io.Pipe()
	s.run(func(p *process) int {
		_, _ = io.WriteString(p.out, "bye")
		return 0
	})
	s.tasks.Wait()
	for range 100 {
		if _, err := s.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if piece, err := s.Output(); err != nil || string(piece.Data) != "bye" {
		t.Errorf("the first output of the session is %q, error %v; want the output that the program wrote before its end", piece.Data, err)
	}
}
