package libvirt

import (
	"context"
	"io"

	"github.com/persys/compute/agent/driver"
)

// Console attaches to the guest's first serial port. An earlier console session is disconnected.
func (d *Driver) Console(ctx context.Context, id driver.ID, _ driver.ConsoleOptions) (driver.Session, error) {
	in, err := d.mine(ctx, id)
	if err != nil {
		return nil, err
	}
	if in == nil {
		return nil, driver.Errorf(driver.RuntimeResourceMissing, "console", "virtual machine %q not found", id)
	}
	if !in.active {
		return nil, driver.Errorf(driver.RuntimeResourceMissing, "console", "virtual machine %q is not running", id)
	}
	line, err := d.hv.console(ctx, in.uuid)
	if err != nil {
		return nil, err
	}
	return &session{ReadWriteCloser: line, piece: make([]byte, 32<<10)}, nil
}

// session is a console session on a serial line. A serial line cannot transmit an end of input or a terminal
// size, and only those signals that a terminal sends as a byte.
type session struct {
	io.ReadWriteCloser
	piece []byte
}

func (s *session) Output() (driver.Output, error) {
	n, err := s.Read(s.piece)
	if err != nil {
		return driver.Output{}, err
	}
	return driver.Output{Data: s.piece[:n]}, nil
}

func (s *session) CloseWrite() error { return nil }

func (s *session) Resize(context.Context, driver.TerminalSize) error { return nil }

// Signal writes the byte that a terminal turns into the signal, such as ^C for INT.
func (s *session) Signal(_ context.Context, name string) error {
	key, ok := map[string]byte{"INT": 0x03, "QUIT": 0x1c, "TSTP": 0x1a}[name]
	if !ok {
		return driver.Errorf(driver.InvalidSpecification, "console", "a serial console has no key for signal %s", name)
	}
	_, err := s.Write([]byte{key})
	return err
}

func (s *session) Exit(context.Context) (int, error) { return 0, nil }
