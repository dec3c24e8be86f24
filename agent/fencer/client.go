package fencer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/persys/compute/agent/fencer/lease"
)

// Client connects an agent to its fencers, the processes that stop exclusive workloads when the lease ends.
// Only one goroutine may use a Client.
type Client struct {
	Dir string
	// Start starts a fencer process; nil if a supervisor such as systemd starts it.
	Start func() error
	// Version is the version of the fencers that this client starts. It replaces a fencer of another version.
	Version string
	Logger  *slog.Logger

	conn    net.Conn
	lines   *bufio.Scanner
	started time.Time
	last    lease.Status
	silent  int // number of consecutive calls that were not answered in time
}

// Time limits of one call to the fencer. They are short, because an agent whose fencer does not answer must
// still confirm the end of a lease in time: after lease.KillAfter a fencer kills the agent.
const (
	callTimeout  = time.Second
	startTimeout = 3 * time.Second
	startAgain   = time.Second
)

// Renew sends the current lease, and the workloads to stop at its end, to the fencer and returns the answer. If
// Client.Start is set and no fencer runs, Renew starts one. If the first fencer does not answer, Renew kills
// it, so that the second fencer takes over.
func (c *Client) Renew(ctx context.Context, in lease.Renewal) (lease.Status, error) {
	out, err := c.call(ctx, in)
	if err != nil {
		return lease.Status{}, err
	}
	if out.Version != c.Version && c.Start != nil && !in.Retire {
		c.Logger.Info("replacing a fencer of another version", "version", out.Version)
		_, err := c.call(ctx, lease.Renewal{Boot: in.Boot, Retire: true})
		c.close()
		if err != nil {
			return lease.Status{}, err
		}
		for until := time.Now().Add(callTimeout); Alive(out.Fencer) && time.Now().Before(until) && ctx.Err() == nil; {
			time.Sleep(10 * time.Millisecond) // the retired fencer needs a moment to end and to release its lock
		}
		c.started = time.Time{}
		return c.call(ctx, in)
	}
	return out, nil
}

func (c *Client) call(ctx context.Context, in lease.Renewal) (lease.Status, error) {
	if c.conn == nil {
		if err := c.connect(ctx); err != nil {
			return lease.Status{}, err
		}
	}
	raw, err := json.Marshal(in)
	if err != nil {
		return lease.Status{}, err
	}
	err = c.conn.SetDeadline(time.Now().Add(callTimeout))
	if err == nil {
		_, err = c.conn.Write(append(raw, '\n'))
	}
	var out lease.Status
	if err == nil {
		if !c.lines.Scan() {
			err = c.lines.Err()
			if err == nil {
				err = errors.New("it closed the connection without an answer")
			}
		} else {
			err = json.Unmarshal(c.lines.Bytes(), &out)
		}
	}
	if err != nil {
		c.close()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.silent++
			if c.silent >= 2 && c.Start != nil && Alive(c.last.Fencer) {
				c.Logger.Warn("the first fencer does not answer: killing it, so that the second fencer takes over", "pid", c.last.Fencer.PID)
				if err := Kill(c.last.Fencer); err != nil && !errors.Is(err, os.ErrProcessDone) {
					c.Logger.Error("could not kill the fencer", "error", err)
				}
			}
		}
		return lease.Status{}, fmt.Errorf("fencer: %w", err)
	}
	c.silent, c.last = 0, out
	if out.Error != "" {
		return lease.Status{}, errors.New("fencer: " + out.Error)
	}
	return out, nil
}

// connect connects to a fencer, and starts one if none runs.
func (c *Client) connect(ctx context.Context) error {
	err := c.dial()
	if err == nil || c.Start == nil || time.Since(c.started) < startAgain {
		return err
	}
	c.started = time.Now()
	if serr := c.Start(); serr != nil {
		return fmt.Errorf("starting the fencer: %w", serr)
	}
	for until := time.Now().Add(startTimeout); time.Now().Before(until) && ctx.Err() == nil; {
		if err = c.dial(); err == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond) // the new fencer needs a moment until it listens
	}
	return err
}

func (c *Client) dial() error {
	path, done, err := at(c.Dir, socketFile)
	if err != nil {
		return fmt.Errorf("fencer: %w", err)
	}
	defer done()
	conn, err := net.DialTimeout("unix", path, callTimeout)
	if err != nil {
		return fmt.Errorf("fencer: %w", err)
	}
	// Ask the kernel which process listens on the socket, because the process itself may never answer.
	if p, err := listener(conn); err == nil {
		c.last = lease.Status{Fencer: p}
	}
	c.conn, c.lines = conn, bufio.NewScanner(conn)
	c.lines.Buffer(nil, 16<<20)
	return nil
}

// listener returns the process that listens at the other end of a connection.
func listener(conn net.Conn) (lease.Process, error) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return lease.Process{}, err
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, cerr); err != nil {
		return lease.Process{}, err
	}
	return processOf(int(cred.Pid))
}

func (c *Client) close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// Close ends the connection. The fencer keeps running.
func (c *Client) Close() { c.close() }
