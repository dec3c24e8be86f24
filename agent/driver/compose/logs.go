package compose

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"

	"github.com/persys/compute/agent/driver"
)

// maxLine is the maximum length of a line of output in bytes. A longer line is split.
const maxLine = 64 << 10

// Logs implements driver.Driver. In a stack of several containers every line begins with the name of its
// container, as in "web-1 | …". If times are shown, the time precedes the name. Options.Tail applies to each
// container separately.
func (d *Driver) Logs(ctx context.Context, id driver.ID, options driver.LogOptions) (io.ReadCloser, error) {
	have, err := d.find(ctx, id)
	if err != nil {
		return nil, err
	}
	var members []member
	for _, some := range have {
		members = append(members, some...)
	}
	if len(members) == 0 {
		return nil, driver.Errorf(driver.RuntimeResourceMissing, "logs", "no container of workload %q found", id)
	}
	if options.Service != "" {
		names := []string{}
		for _, m := range members {
			names = append(names, m.service)
		}
		if members = slices.DeleteFunc(members, func(m member) bool { return m.service != options.Service }); len(members) == 0 {
			slices.Sort(names)
			return nil, driver.Errorf(driver.InvalidSpecification, "logs", "workload %[2]q has no service %[1]q; it has %[3]s", options.Service, id, strings.Join(slices.Compact(names), ", "))
		}
	}
	slices.SortFunc(members, func(a, b member) int {
		return cmp.Or(strings.Compare(a.service, b.service), strings.Compare(short(a), short(b)))
	})
	if len(members) == 1 {
		return d.eng.Logs(ctx, members[0].ID, options)
	}
	lasts := &lasts{lines: make([]lastLine, len(members))}
	ctx, cancel := context.WithCancel(ctx)
	streams := make([]io.ReadCloser, 0, len(members))
	closeAll := func() {
		cancel()
		for _, s := range streams {
			_ = s.Close()
		}
	}
	for i, m := range members {
		options := options
		if seen := options.Seen; seen != nil {
			options.Seen = func(at time.Time) { seen(lasts.of(i, at)) }
		}
		if options.Follow && m.State == container.StateCreated {
			continue // the container has written no output yet, so its stream ends at once
		}
		rc, err := d.eng.Logs(ctx, m.ID, options)
		if err != nil {
			closeAll()
			return nil, err
		}
		streams = append(streams, &labelled{rc, short(m)})
	}
	return merge(streams, options.Timestamps, closeAll), nil
}

// short returns a container's name without the project's name.
func short(m member) string {
	if len(m.Names) == 0 {
		return m.service
	}
	return strings.TrimPrefix(strings.TrimPrefix(m.Names[0], "/"), m.project+"-")
}

// lasts holds the time of the last log line of each container, so that an interrupted reader of the merged log
// knows where to resume.
type lasts struct {
	mu    sync.Mutex
	lines []lastLine
}

type lastLine struct{ at, read time.Time }

// behind limits how far a reader must go back to resume: lasts.of ignores a container whose last line was
// read longer ago than this.
const behind = 5 * time.Second

// of records the time of the last log line of container i. It returns the time from which a reader of all logs
// must resume: the oldest of the times of the last lines. Containers from which no line was read for the time
// behind are ignored.
func (l *lasts) of(i int, at time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.lines[i] = lastLine{at, now}
	for _, other := range l.lines {
		if other.at.Before(at) && now.Sub(other.read) < behind {
			at = other.at
		}
	}
	return at
}

type labelled struct {
	io.ReadCloser
	name string
}

// merge returns one stream with the log lines of all streams, in the order in which they arrive. Its Close
// waits until the goroutines that copy the streams have ended.
func merge(streams []io.ReadCloser, stamped bool, stop func()) io.ReadCloser {
	pr, pw := io.Pipe()
	var copies sync.WaitGroup
	var line sync.Mutex
	for _, s := range streams {
		copies.Go(func() {
			name := s.(*labelled).name
			r := bufio.NewReaderSize(s, maxLine)
			for {
				text, err := r.ReadSlice('\n')
				if len(text) > 0 {
					before := name + " | "
					if stamp, rest, ok := strings.Cut(string(text), " "); stamped && ok {
						before, text = stamp+" "+before, []byte(rest)
					}
					if text[len(text)-1] != '\n' {
						text = append(slices.Clone(text), '\n')
					}
					line.Lock()
					_, werr := pw.Write(append([]byte(before), text...))
					line.Unlock()
					if werr != nil {
						return
					}
				}
				if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
					if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
						pw.CloseWithError(err)
					}
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		copies.Wait()
		pw.Close()
	}()
	return &merged{Reader: pr, stop: func() {
		pr.CloseWithError(io.ErrClosedPipe)
		stop()
		<-done
	}}
}

type merged struct {
	io.Reader
	once sync.Once
	stop func()
}

func (m *merged) Close() error {
	m.once.Do(m.stop)
	return nil
}
