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

// Client connects an agent to its fencers. It is for one caller at a time.
type Client struct {
	Dir string
	// Start starts a fencer; nil if a supervisor such as systemd does.
	Start func() error
	// Version of the fencers that this client starts. A fencer of another version is replaced.
	Version string
	Logger  *slog.Logger

	conn    net.Conn
	lines   *bufio.Scanner
	started time.Time
	last    lease.Status
	silent  int // calls in a row that were not answered in time
}

// Times of one call. An agent that waited longer would not confirm the end of a lease in time.
const (
	callTimeout  = time.Second
	startTimeout = 3 * time.Second
	startAgain   = time.Second
)

// Renew sends a renewal and returns the answer. If the client may start fencers, it starts one if none
// runs, and kills the first one if it does not answer, so that the second takes over.
func (c *Client) Renew(ctx context.Context, in lease.Renewal) (lease.Status, error) {
	out, err := c.call(ctx, in)
	if err != nil {
		return lease.Status{}, err
	}
	if out.Version != c.Version && c.Start != nil && !in.Retire {
		c.Logger.Info("replacing a guard of another version", "version", out.Version)
		_, err := c.call(ctx, lease.Renewal{Boot: in.Boot, Retire: true})
		c.close()
		if err != nil {
			return lease.Status{}, err
		}
		for until := time.Now().Add(callTimeout); Alive(out.Guard) && time.Now().Before(until) && ctx.Err() == nil; {
			time.Sleep(10 * time.Millisecond) // until it has released its lock
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
				err = errors.New("it has ended")
			}
		} else {
			err = json.Unmarshal(c.lines.Bytes(), &out)
		}
	}
	if err != nil {
		c.close()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.silent++
			if c.silent >= 2 && c.Start != nil && Alive(c.last.Guard) {
				c.Logger.Warn("the guard does not answer: killing it, so that the other takes over", "pid", c.last.Guard.PID)
				if err := Kill(c.last.Guard); err != nil && !errors.Is(err, os.ErrProcessDone) {
					c.Logger.Error("killing the guard", "error", err)
				}
			}
		}
		return lease.Status{}, fmt.Errorf("guard: %w", err)
	}
	c.silent, c.last = 0, out
	if out.Error != "" {
		return lease.Status{}, errors.New("guard: " + out.Error)
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
		return fmt.Errorf("starting the guard: %w", serr)
	}
	for until := time.Now().Add(startTimeout); time.Now().Before(until) && ctx.Err() == nil; {
		if err = c.dial(); err == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond) // until it listens
	}
	return err
}

func (c *Client) dial() error {
	path, done, err := at(c.Dir, socketFile)
	if err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	defer done()
	conn, err := net.DialTimeout("unix", path, callTimeout)
	if err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	// The process is known from the socket, even if it never answers.
	if p, err := listener(conn); err == nil {
		c.last = lease.Status{Guard: p}
	}
	c.conn, c.lines = conn, bufio.NewScanner(conn)
	c.lines.Buffer(nil, 16<<20)
	return nil
}

// listener is the process at the other end of a connection.
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

// Close ends the connection; the fencer goes on.
func (c *Client) Close() { c.close() }
