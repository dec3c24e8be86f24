package auditsink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/syslog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// sink is a destination of batches of lines. Each line ends with a newline. After a failed write the caller
// writes the whole batch again.
type sink interface {
	write(ctx context.Context, lines [][]byte) error
	Close() error
}

// writeLimit is the timeout of one write to a sink.
const writeLimit = 10 * time.Second

// Check returns an error if the address of a sink is invalid.
func Check(address string) error {
	_, err := parse(address)
	return err
}

// parse parses the address of a sink. It returns an error if the address is invalid.
func parse(address string) (*url.URL, error) {
	const forms = "must be file:///PATH, syslog: (the daemon of this machine) or https://HOST[:PORT]/PATH"
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New(forms) // leave out the text of err, which contains the address and so the password in it
	}
	switch u.Scheme {
	case "file":
		if u.Host != "" || !filepath.IsAbs(u.Path) || strings.HasSuffix(u.Path, "/") {
			return nil, fmt.Errorf("%q %s", address, forms)
		}
	case "syslog":
		if u.Host != "" || u.Path != "" || u.Opaque != "" {
			return nil, fmt.Errorf("%q %s", address, forms)
		}
	case "https", "http":
		switch ip := net.ParseIP(u.Hostname()); {
		case u.Host == "" || u.User != nil:
			return nil, fmt.Errorf("%s, without a user name: set the secret in SCHEDULER_AUDIT_SINK_TOKEN", forms)
		case u.Scheme == "http" && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()):
			return nil, fmt.Errorf("%q %s; plain http is for loopback addresses only", address, forms)
		}
	default:
		return nil, fmt.Errorf("%q %s", u.Redacted(), forms)
	}
	return u, nil
}

// open returns the sink at an address. token is the bearer token for HTTPS, "" for none.
func open(address, token string) (sink, error) {
	u, err := parse(address)
	if err != nil {
		return nil, err
	}
	switch u.Scheme {
	case "file":
		return file(u.Path), nil
	case "syslog":
		return &daemon{}, nil
	}
	return &endpoint{url: u.String(), token: token, client: &http.Client{
		Timeout: writeLimit,
		// Do not follow redirects: the records must go only to the configured address.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// file is a sink that appends to a file. It opens the file again for each batch, so that another program may
// rotate the file at any time.
type file string

func (f file) write(_ context.Context, lines [][]byte) error {
	out, err := os.OpenFile(string(f), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	before, err := out.Seek(0, io.SeekEnd)
	if err == nil {
		if _, err = out.Write(bytes.Join(lines, nil)); err == nil {
			err = out.Sync()
		}
		if err != nil { // the disk may be full: remove the incomplete line from the file
			_ = out.Truncate(before)
		}
	}
	return errors.Join(err, out.Close())
}

func (file) Close() error { return nil }

// daemon is a sink that sends to the syslog daemon of this machine, with facility auth and tag persys-audit.
type daemon struct{ w *syslog.Writer }

func (d *daemon) write(_ context.Context, lines [][]byte) (err error) {
	if d.w == nil {
		if d.w, err = syslog.New(syslog.LOG_NOTICE|syslog.LOG_AUTH, "persys-audit"); err != nil {
			return err
		}
	}
	for _, l := range lines {
		if _, err := d.w.Write(l); err != nil {
			return errors.Join(err, d.Close())
		}
	}
	return nil
}

func (d *daemon) Close() error {
	if d.w == nil {
		return nil
	}
	w := d.w
	d.w = nil
	return w.Close()
}

// endpoint is a sink that posts lines of JSON (application/x-ndjson) to an HTTPS address. A 2xx status means
// that the batch is stored.
type endpoint struct {
	url, token string
	client     *http.Client
}

func (e *endpoint) write(ctx context.Context, lines [][]byte) error {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(bytes.Join(lines, nil)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	if e.token != "" {
		req.Header.Set("Authorization", "Bearer "+e.token)
	}
	resp, err := e.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, 256))
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the endpoint answers %s: %.200q", resp.Status, said)
	}
	return err
}

func (e *endpoint) Close() error {
	e.client.CloseIdleConnections()
	return nil
}
