package libvirt

import (
	"context"
	"errors"
	"io"

	"github.com/persys/compute/agent/driver"
)

// Logs returns the output of the guest's first serial port, as virtlogd stores it.
func (d *Driver) Logs(ctx context.Context, id driver.ID, options driver.LogOptions) (io.ReadCloser, error) {
	in, err := d.mine(ctx, id)
	if err != nil {
		return nil, err
	}
	if in == nil {
		return nil, driver.Errorf(driver.RuntimeResourceMissing, "logs", "virtual machine %q not found", id)
	}
	r := in.config
	if in.active {
		r = in.live
	}
	if r == nil || r.Console == "" {
		return nil, driver.Errorf(driver.RuntimeResourceMissing, "logs", "the console of virtual machine %q is not recorded: its domain was defined without a log", id)
	}
	pr, pw := io.Pipe()
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		pw.CloseWithError(copyConsole(ctx, r.Console, options, func(ctx context.Context) (bool, error) { return d.over(ctx, in.name) }, pw))
	}()
	return &logReader{PipeReader: pr, cancel: cancel}, nil
}

type logReader struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (l *logReader) Close() error {
	l.cancel()
	return l.PipeReader.Close()
}

// over reports whether the guest of a domain has stopped, so that its console log is complete. It returns
// false if libvirt does not answer, because the guest may still run.
func (d *Driver) over(ctx context.Context, name string) (bool, error) {
	dom, err := d.hv.domain(ctx, name)
	switch {
	case err == nil:
		return !dom.active, nil
	case errors.Is(err, errAbsent):
		return true, nil
	case driver.ClassOf(err) == driver.RuntimeUnhealthy:
		return false, nil
	}
	return false, err
}
