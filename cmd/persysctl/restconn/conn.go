// Package restconn connects generated gRPC clients to a gateway. A Conn turns each call into a request to the
// gateway's /v1, so commands work with both kinds of connection.
//
// A rule in api/rest/rest.yaml maps each gRPC method to an HTTP request; the gateway's handlers are generated
// from the same rules. Sessions in workloads use the gateway's websocket. Calls with secrets or large data
// have no rule. They fail with an error that says that they need a connection to a scheduler.
package restconn

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/persys/compute/rpc/dial"
)

const (
	// attempts is the maximum number of HTTP requests for one call. All of them carry the same idempotency
	// key.
	attempts = 3
	pause    = 100 * time.Millisecond
	// maxAnswer is the maximum size in bytes of an answer and of one event of a stream. The JSON form of a
	// gRPC message of 4 MiB fits.
	maxAnswer = 16 << 20
	// silence is how long a stream or session may receive nothing before it is ended. A gateway sends a
	// comment or a ping every 15 or 20 seconds.
	silence = 45 * time.Second
	// probe is the time limit of a second connection that Conn.why opens to find out why a gateway closed the first
	// connection.
	probe = 5 * time.Second
)

// ReasonNoRoute is the error reason of a call that cannot be made over a gateway, because no rule maps it to
// a request.
const ReasonNoRoute = "NO_ROUTE"

// Options configure a Conn.
type Options struct {
	// URL is http://HOST[:PORT] or https://HOST[:PORT].
	URL string
	// Cluster is the id of one of the clusters behind the gateway; "" selects the gateway's default cluster.
	Cluster string
	// Token returns a bearer token, or "" for none. It is called before each request, since
	// tokens are renewed.
	Token func() (string, error)
	// TLS is the configuration for https. If it is nil, the connection uses the system's root CAs and no
	// client certificate.
	TLS         *tls.Config
	UserAgent   string
	CallTimeout time.Duration
	// Wrap wraps the HTTP transport, for traces; it may be nil.
	Wrap func(http.RoundTripper) http.RoundTripper
}

// Conn implements grpc.ClientConnInterface. It is safe for concurrent use.
type Conn struct {
	opt       Options
	base      string
	routes    map[string]route
	http      *http.Client
	transport *http.Transport
	silence   time.Duration
}

var _ grpc.ClientConnInterface = (*Conn)(nil)

// New prepares a connection to a gateway. It sends nothing; the first call does.
func New(opt Options) (*Conn, error) {
	u, err := url.Parse(opt.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("gateway %q: must be http://HOST[:PORT] or https://HOST[:PORT]", opt.URL)
	}
	if u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("gateway %q: must be an address only, without user, query and fragment", opt.URL)
	}
	table, err := routes()
	if err != nil {
		return nil, err
	}
	if opt.CallTimeout <= 0 {
		opt.CallTimeout = dial.DefaultCallTimeout
	}
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: opt.TLS, ForceAttemptHTTP2: true,
		DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext, TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 16, IdleConnTimeout: 30 * time.Second,
	}
	var rt http.RoundTripper = t
	if opt.Wrap != nil {
		rt = opt.Wrap(t)
	}
	c := &Conn{opt: opt, base: strings.TrimRight(opt.URL, "/"), routes: table, transport: t, silence: silence}
	// Redirects are not followed: one could send the token to another server.
	c.http = &http.Client{Transport: rt, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return c, nil
}

// Close closes idle connections. Calls end with their contexts.
func (c *Conn) Close() error {
	c.transport.CloseIdleConnections()
	return nil
}

// Invoke implements grpc.ClientConnInterface.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	in, ok := args.(proto.Message)
	out, ok2 := reply.(proto.Message)
	if !ok || !ok2 {
		return status.Errorf(codes.Internal, "%s: no protobuf messages", method)
	}
	if _, limited := ctx.Deadline(); !limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.opt.CallTimeout)
		defer cancel()
	}
	r, ok := c.routes[method]
	if !ok {
		return noRoute(method)
	}
	path, body, err := r.request(in)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "%v", err)
	}
	mutation, once := !dial.IsRead(method), dial.Once(method)
	key := ""
	if mutation && !once {
		// All attempts carry the same request id in this header, so the change happens at most once. The header also
		// allows net/http to repeat the request.
		if key, err = requestID(ctx); err != nil {
			return status.Errorf(codes.Internal, "%v", err)
		}
	}
	sent := false // whether an attempt may have reached the cluster
	for try := 1; ; try++ {
		resp, err := c.do(ctx, r.method, path, body, key, "application/json")
		if err == nil {
			var data []byte
			data, err = read(resp)
			if err == nil {
				return c.answer(resp.StatusCode, data, out, mutation)
			}
			sent = true
		} else if !neverSent(err) {
			sent = true
		}
		if ctx.Err() != nil || try == attempts || once && sent || refused(err) != "" {
			return failed(ctx, err, sent && mutation)
		}
		t := time.NewTimer(pause << (2 * (try - 1)))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return failed(ctx, err, sent && mutation)
		}
	}
}

func requestID(ctx context.Context) (string, error) {
	if md, ok := metadata.FromOutgoingContext(ctx); ok {
		if v := md.Get(dial.KeyRequestID); len(v) == 1 && v[0] != "" {
			return v[0], nil
		}
	}
	id, err := uuid.NewV7()
	return id.String(), err
}

func (c *Conn) do(ctx context.Context, method, path string, body []byte, key, accept string) (*http.Response, error) {
	var in io.Reader
	if body != nil {
		in = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, in)
	if err != nil {
		return nil, err
	}
	if req.Header, err = c.header(); err != nil {
		return nil, err
	}
	req.Header.Set("Accept", accept)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.why(req, err)
	}
	return resp, nil
}

// header returns the headers for the token, the cluster and the user agent.
func (c *Conn) header() (http.Header, error) {
	h := http.Header{"User-Agent": {c.opt.UserAgent}}
	if c.opt.Cluster != "" {
		h.Set("X-Persys-Cluster-ID", c.opt.Cluster)
	}
	if c.opt.Token != nil {
		token, err := c.opt.Token()
		if err != nil {
			return nil, status.Errorf(codes.Unauthenticated, "bearer token: %v", err)
		}
		if token != "" {
			h.Set("Authorization", "Bearer "+token)
		}
	}
	return h, nil
}

// neverSent reports whether err shows that the request did not reach the gateway.
func neverSent(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return true
	}
	var cert *tls.CertificateVerificationError
	var s interface{ GRPCStatus() *status.Status }
	return errors.As(err, &cert) || errors.As(err, &s) || refused(err) != ""
}

// refused returns the reason in a TLS alert with which the server refused our certificate, or "" for any
// other error. In TLS 1.3 the alert arrives in place of the answer, after the client's handshake has succeeded.
func refused(err error) string {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "remote error" {
		return ""
	}
	said := strings.TrimPrefix(op.Err.Error(), "tls: ")
	if strings.Contains(said, "certificate") || said == "access denied" {
		return said
	}
	return ""
}

// why returns err with the reason why the gateway closed the connection. If the gateway closes the connection while a
// request is still being written, the write fails with "broken pipe", and the TLS alert that the gateway sent before is
// never read. So why makes a second connection with the same certificate, writes nothing and reads the alert.
func (c *Conn) why(req *http.Request, err error) error {
	gone := errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) ||
		strings.Contains(err.Error(), "http2: client conn") // net/http does not export these errors
	if !gone || req.URL.Scheme != "https" || refused(err) != "" {
		return err
	}
	if proxy, perr := c.transport.Proxy(req); proxy != nil || perr != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(req.Context(), probe)
	defer cancel()
	port := cmp.Or(req.URL.Port(), "443")
	if alert := listen(ctx, net.JoinHostPort(req.URL.Hostname(), port), c.opt.TLS); refused(alert) != "" {
		return alert
	}
	return err
}

// listen opens a TLS connection to addr, sends no request, waits until the server closes the connection, and returns
// the error (such as a TLS alert).
func listen(ctx context.Context, addr string, cfg *tls.Config) error {
	conn, err := (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	end, _ := ctx.Deadline()
	_ = conn.SetReadDeadline(end)
	_, err = conn.Read(make([]byte, 1))
	return err
}

// CertificateRefusal returns the reason for which the server at addr refuses our certificate, or "" if it
// accepts it. It waits for the server until ctx ends; ctx must have a deadline.
func CertificateRefusal(ctx context.Context, addr string, cfg *tls.Config) string {
	return refused(listen(ctx, addr, cfg))
}

// failed returns the gRPC status for a request that got no answer because of err. If maybe is true, the gateway may
// have received the request and carried out a change, so the outcome is unknown.
func failed(ctx context.Context, err error, maybe bool) error {
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		return s.GRPCStatus().Err()
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // the error inside of a url.Error lacks the method and the address, which users do not need
	}
	if why := refused(err); why != "" {
		return status.Error(codes.Unavailable, "connection error: the gateway refuses our certificate: "+why)
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return status.Error(codes.Canceled, "canceled")
	case maybe:
		return dial.UnknownOutcome("the gateway broke off: " + err.Error())
	case ctx.Err() != nil:
		return status.Error(codes.DeadlineExceeded, "no answer from the gateway in time")
	}
	return status.Error(codes.Unavailable, "connection error: "+err.Error())
}

func read(resp *http.Response) ([]byte, error) {
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(data) > maxAnswer {
		err = status.Errorf(codes.ResourceExhausted, "the gateway's answer is over %d MiB", maxAnswer>>20)
	}
	return data, err
}

// answer decodes the body of an HTTP response with the status code into out, or returns the error that the
// body contains.
func (c *Conn) answer(code int, data []byte, out proto.Message, mutation bool) error {
	if code == http.StatusOK {
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, out); err != nil {
			return status.Errorf(codes.Internal, "%s is not a Persys gateway, or it is newer than persysctl: %v", c.base, err)
		}
		return nil
	}
	return c.problem(code, data, mutation)
}

// problem turns the body of an HTTP error into the gRPC status that the gateway got from a scheduler.
func (c *Conn) problem(code int, data []byte, mutation bool) error {
	var p struct {
		Error, Code, Reason string
	}
	if err := json.Unmarshal(data, &p); err == nil && p.Error != "" {
		return named(fromHTTP(code), p.Code, p.Reason, p.Error)
	}
	text := strings.TrimSpace(string(data[:min(len(data), 200)]))
	if code == http.StatusNotFound {
		return status.Errorf(codes.Unimplemented, "%s answers but has no /v1: it is not a Persys gateway, or an old one", c.base)
	}
	kind := fromHTTP(code)
	if kind == codes.Unavailable && mutation {
		return dial.UnknownOutcome(fmt.Sprintf("a proxy in front of the gateway answered %d: %s", code, text))
	}
	return status.Errorf(kind, "%s answered %d: %s", c.base, code, text)
}

// named returns an error with the gRPC code whose name is code, or, if no gRPC code has that name, with the code kind.
func named(kind codes.Code, code, reason, text string) error {
	var k codes.Code
	if code != "" && k.UnmarshalJSON([]byte(`"`+code+`"`)) == nil && k != codes.OK {
		kind = k
	}
	if reason != "" {
		return dial.Error(kind, reason, text)
	}
	return status.Error(kind, text)
}

func fromHTTP(code int) codes.Code {
	switch code {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return codes.InvalidArgument
	case http.StatusUnauthorized:
		return codes.Unauthenticated
	case http.StatusForbidden:
		return codes.PermissionDenied
	case http.StatusNotFound:
		return codes.NotFound
	case http.StatusConflict, http.StatusPreconditionFailed:
		return codes.FailedPrecondition
	case http.StatusRequestEntityTooLarge, http.StatusTooManyRequests:
		return codes.ResourceExhausted
	case http.StatusNotImplemented:
		return codes.Unimplemented
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return codes.Unavailable
	case http.StatusGatewayTimeout:
		return codes.DeadlineExceeded
	}
	return codes.Unknown
}

func noRoute(method string) error {
	name := method[strings.LastIndexByte(method, '/')+1:]
	return dial.Error(codes.Unimplemented, ReasonNoRoute,
		fmt.Sprintf("a gateway does not offer %s, call a scheduler directly: `persysctl --server HOST:8085 …`", name))
}

// fromEvent returns the status error in the last event of a stream.
func fromEvent(data []byte) error {
	s := &spb.Status{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, s); err != nil || s.GetCode() == 0 {
		return status.Errorf(codes.Unknown, "the stream ended: %s", data)
	}
	return status.FromProto(s).Err()
}
