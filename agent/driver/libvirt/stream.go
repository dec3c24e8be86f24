package libvirt

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"

	lv "github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket"
	"github.com/persys/compute/agent/driver"
)

// console implements hypervisor. It opens a libvirt connection of its own for the stream, so that a console
// whose output nobody reads blocks no other call.
func (v *connection) console(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	limited, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()
	s := &stream{}
	output, toReader := io.Pipe()
	s.output = output
	_, err := v.open(limited, func(conn net.Conn) net.Conn {
		s.wire = &consoleWire{Conn: conn, packets: bufio.NewReader(conn), output: toReader}
		return s.wire
	}, func(l *link) error {
		s.l = l
		s.wire.end = func() {
			_ = toReader.Close()
			go l.close()
		}
		context.AfterFunc(l.ctx, func() { _ = toReader.Close() })
		d, err := lookup(l.Libvirt, id)
		if err != nil {
			return err
		}
		return l.DomainOpenConsole(d, nil, nil, uint32(lv.DomainConsoleForce))
	})
	if err == nil {
		return s, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return nil, classify("console", err)
}

// stream carries the input and output of a guest's serial console.
type stream struct {
	l      *link
	wire   *consoleWire
	output *io.PipeReader // from the guest
}

func (s *stream) Read(p []byte) (int, error) { return s.output.Read(p) }

func (s *stream) Write(p []byte) (int, error) {
	sent := 0
	for sent < len(p) {
		piece := p[sent:min(len(p), sent+maxPiece)]
		if err := s.wire.send(piece); err != nil {
			return sent, driver.Errorf(driver.RuntimeError, "console", "%w", err)
		}
		sent += len(piece)
	}
	return sent, nil
}

// Close ends a blocked Read.
func (s *stream) Close() error {
	_ = s.output.Close()
	s.l.close()
	return nil
}

// A packet of libvirt's protocol begins with its length and a header of six numbers: program, version, procedure, type,
// serial number of the call, status. See libvirt's docs/kbase/internals/rpc.rst.
const (
	headerBytes = 28
	procedureAt = 12
	typeAt      = 16
	statusAt    = 24
	openConsole = 201      // the procedure DOMAIN_OPEN_CONSOLE
	maxPiece    = 64 << 10 // bytes of input in one packet
)

// consoleWire is the socket of a console's connection. It handles the packets of the console itself and passes all other
// packets to the client library. The library can handle consoles too, but its code for that can hang forever if libvirt
// sends an answer and the end of the console at the same time.
type consoleWire struct {
	net.Conn
	packets *bufio.Reader
	left    int               // bytes of the current packet that the library has not read yet
	agreed  [headerBytes]byte // header of the answer that opened the console
	output  *io.PipeWriter    // takes the output of the guest
	end     func()            // called when the stream ends
}

func (w *consoleWire) Read(p []byte) (int, error) {
	for w.left == 0 {
		header, err := w.packets.Peek(headerBytes)
		if err != nil {
			return 0, err
		}
		size := int(binary.BigEndian.Uint32(header))
		if size < headerBytes {
			return 0, fmt.Errorf("libvirt sent a packet of %d bytes; a packet has at least %d", size, headerBytes)
		}
		if binary.BigEndian.Uint32(header[typeAt:]) == socket.Stream {
			if err := w.take(size-headerBytes, binary.BigEndian.Uint32(header[statusAt:])); err != nil {
				return 0, err
			}
			continue
		}
		if binary.BigEndian.Uint32(header[procedureAt:]) == openConsole {
			copy(w.agreed[:], header)
		}
		w.left = size
	}
	n, err := w.packets.Read(p[:min(len(p), w.left)])
	w.left -= n
	return n, err
}

// take reads a packet of the stream with n bytes of output. After Close the output is dropped.
func (w *consoleWire) take(n int, status uint32) error {
	if _, err := w.packets.Discard(headerBytes); err != nil {
		return err
	}
	if status != socket.StatusContinue || n == 0 { // libvirt reports an error, or the end of the stream
		w.end()
		_, err := w.packets.Discard(n)
		return err
	}
	piece := make([]byte, n)
	_, err := io.ReadFull(w.packets, piece)
	if err == nil {
		_, _ = w.output.Write(piece)
	}
	return err
}

// send sends input for the guest.
func (w *consoleWire) send(input []byte) error {
	packet := append(w.agreed[:len(w.agreed):len(w.agreed)], input...)
	binary.BigEndian.PutUint32(packet, uint32(len(packet)))
	binary.BigEndian.PutUint32(packet[typeAt:], socket.Stream)
	binary.BigEndian.PutUint32(packet[statusAt:], socket.StatusContinue)
	_, err := w.Write(packet)
	return err
}
