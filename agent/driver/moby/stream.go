package moby

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"
	"github.com/persys/compute/agent/driver"
)

// Minimum and maximum delay before Events reconnects to an engine that does not answer.
const (
	minBackoff = 200 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// Events sends the workload id of every container event that the function pick accepts by the container's
// labels. After a restart of the engine it opens the stream again, until ctx ends.
func (e *Engine) Events(ctx context.Context, pick func(labels map[string]string) bool) (<-chan driver.ID, error) {
	if err := ctx.Err(); err != nil {
		return nil, &driver.Error{Class: driver.UnknownError, Op: "events", Err: err}
	}
	hints := driver.NewHints()
	out := make(chan driver.ID)
	go hints.Send(ctx, out)
	go e.watch(ctx, hints, pick)
	return out, nil
}

func (e *Engine) watch(ctx context.Context, hints *driver.Hints, pick func(map[string]string) bool) {
	backoff := minBackoff
	for {
		start := time.Now()
		err := e.watchOnce(ctx, hints, pick)
		if ctx.Err() != nil {
			return
		}
		if time.Since(start) > maxBackoff {
			backoff = minBackoff
		}
		e.log.Warn("the engine's event stream ended; it is opened again", "after", backoff, "error", err)
		timer := time.NewTimer(backoff)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// watchOnce reads one event stream to its end. Events of the engine that occurred before the stream was open
// are lost. So watchOnce first sends the empty id, which means that any workload may have changed. It does so
// for the first stream too, because Events returns before the stream is open.
func (e *Engine) watchOnce(ctx context.Context, hints *driver.Hints, pick func(map[string]string) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream := e.Client.Events(ctx, client.EventsListOptions{
		Filters: make(client.Filters).
			Add("type", "container").
			Add("label", driver.LabelManaged+"=true").
			Add("event", "create", "start", "die", "stop", "oom", "pause", "unpause", "destroy", "rename", "health_status"),
	})
	select {
	case err := <-stream.Err:
		return err
	default:
		hints.Add("")
	}
	for {
		select {
		case msg := <-stream.Messages:
			e.ooms.note(msg.Action, msg.Actor.ID)
			if pick(msg.Actor.Attributes) {
				hints.Add(driver.ID(msg.Actor.Attributes[driver.LabelWorkload]))
			}
		case err := <-stream.Err:
			return err
		}
	}
}

// Logs returns the output of one container. Stdout and stderr are merged frame by frame, as the engine
// sends them.
func (e *Engine) Logs(ctx context.Context, id string, options driver.LogOptions) (io.ReadCloser, error) {
	full, err := e.Inspect(ctx, id)
	if err != nil {
		return nil, Classify("logs", err)
	}
	opts := client.ContainerLogsOptions{
		ShowStdout: true, ShowStderr: true, Follow: options.Follow, Timestamps: options.Timestamps,
	}
	tty := full.Config != nil && full.Config.Tty
	if options.Seen != nil && !tty {
		opts.Timestamps = true
	}
	if options.Tail > 0 {
		opts.Tail = strconv.Itoa(options.Tail)
	}
	if !options.Since.IsZero() {
		opts.Since = options.Since.UTC().Format(time.RFC3339Nano)
	}
	bound := e.Call
	if options.Follow {
		bound = context.WithCancel // a log that is followed has no time limit
	}
	logCtx, cancel := bound(ctx)
	rc, err := e.Client.ContainerLogs(logCtx, id, opts)
	if err != nil {
		cancel()
		return nil, Classify("logs", err)
	}
	if tty {
		// A container that the agent took over from a legacy v1 agent may have a terminal. The engine sends a
		// terminal's output without frames.
		return &logReader{Reader: rc, stop: func() { cancel(); rc.Close() }}, nil
	}
	return demultiplex(rc, cancel, options), nil
}

// stamped is a Writer for one stream of a container's log. It reports the time of each frame to
// LogOptions.Seen, and removes the time from the output unless the caller wants timestamps. stdcopy.StdCopy
// passes one frame to each Write call. The engine begins each frame with its time, also the later parts of a
// long line.
type stamped struct {
	io.Writer
	options driver.LogOptions
}

func (s stamped) Write(frame []byte) (int, error) {
	rest := frame
	if stamp, text, ok := bytes.Cut(frame, []byte(" ")); ok {
		if at, err := time.Parse(time.RFC3339Nano, string(stamp)); err == nil {
			s.options.Seen(at)
			if !s.options.Timestamps {
				rest = text
			}
		}
	}
	n, err := s.Writer.Write(rest)
	return n + len(frame) - len(rest), err
}

// demultiplex returns the output without frame headers. Close of the returned reader waits until the goroutine
// that copies the output has ended.
func demultiplex(rc io.ReadCloser, cancel context.CancelFunc, options driver.LogOptions) io.ReadCloser {
	pr, pw := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		var to io.Writer = pw
		if options.Seen != nil {
			to = stamped{pw, options}
		}
		_, err := stdcopy.StdCopy(to, to, rc)
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		pw.CloseWithError(err)
		rc.Close()
		cancel()
	}()
	return &logReader{Reader: pr, stop: func() {
		cancel()
		pr.CloseWithError(io.ErrClosedPipe)
		rc.Close()
		<-done
	}}
}

type logReader struct {
	io.Reader
	once sync.Once
	stop func()
}

func (r *logReader) Close() error {
	r.once.Do(r.stop)
	return nil
}
