package gateway

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	"github.com/persys/compute/rpc/dial"
)

// The subprotocol of a session, and the prefix of the one that carries a bearer
// token: a browser cannot set a header on a websocket. The token is base64url
// without padding, and never answered back.
const (
	execProtocol  = "persys.exec.v1"
	tokenProtocol = "persys.token."
)

// Bounds of a session at the gateway; how long it may be silent is the agent's.
const (
	maxExecMessage = 256 << 10        // bytes, from the caller
	execPing       = 20 * time.Second // between two questions whether the caller is there
	// A caller that takes nothing for so long is gone. A person who reads the output
	// page by page takes nothing for a while.
	execPatience = 5 * time.Minute
	execBye      = 5 * time.Second // for the reason that a session ends with
)

// execEnd is the message that tells why a session ended without an exit code.
type execEnd struct {
	Error struct {
		Code    string `json:"code"`
		Reason  string `json:"reason,omitempty"`
		Message string `json:"message"`
	} `json:"error"`
}

// exec carries a session (Cluster.Exec) over a websocket. Each message is the
// JSON of an ExecRequest upwards and of an ExecResponse downwards; the workload
// is the path's. A session that fails ends with {"error": {"code", "reason",
// "message"}}.
//
// Refusals come before the upgrade, as HTTP: 401, 403 (role or origin), 426 for a
// request that is no websocket.
func (g *Gateway) exec(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(g.ctx, cancel)()
	stream, err := clusterv1.NewClusterClient(routed{}).Exec(ctx)
	if err != nil {
		fail(w, err)
		return
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		w.Header().Set("Upgrade", "websocket")
		refuse(w, http.StatusUpgradeRequired, "a session needs a websocket with the subprotocol "+execProtocol)
		return
	}
	g.sessions.Add(1)
	defer g.sessions.Done()
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{execProtocol}})
	if err != nil {
		return // it has answered
	}
	defer func() { _ = ws.CloseNow() }() // the peer may be gone
	if ws.Subprotocol() != execProtocol {
		_ = ws.Close(websocket.StatusPolicyViolation, "the subprotocol must be "+execProtocol)
		return
	}
	ws.SetReadLimit(maxExecMessage)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel() // ends the tasks
	s := &execSession{ws: ws, stream: stream, workload: r.PathValue("id"), ping: g.execPing, patience: g.execPatience}
	refused := make(chan error, 1)
	tasks.Go(func() {
		refused <- s.upwards(ctx)
		cancel()
	})
	var over atomic.Bool
	tasks.Go(func() {
		s.alive(ctx)
		if !over.Load() { // a question that meets the goodbye gets no answer, and must not cut it short
			cancel()
		}
	})
	err = s.downwards(ctx)
	over.Store(true)
	if err == nil {
		_ = ws.Close(websocket.StatusNormalClosure, "") // the peer may be gone
		return
	}
	if status.Code(err) == codes.Canceled { // by one of the tasks: its reason counts
		select {
		case why := <-refused:
			if why == nil {
				return // the caller has left
			}
			err = why
		default:
		}
	}
	s.end(context.WithoutCancel(ctx), err)
}

type execSession struct {
	ws       *websocket.Conn
	stream   clusterv1.Cluster_ExecClient
	workload string
	ping     time.Duration
	patience time.Duration
	// Messages on their way: behind one upwards no answer of the caller is read, behind
	// one downwards it cannot be asked.
	passing atomic.Int32
	read    atomic.Uint64 // messages of the caller: one that sends is there, however busy its line is
}

// upwards passes on what the caller sends until it leaves (nil) or sends what is
// no request. What comes when the session is over is read and dropped: its last
// output and its exit code may still be on their way down.
func (s *execSession) upwards(ctx context.Context) error {
	over := false
	for first := true; ; first = false {
		_, data, err := s.ws.Read(ctx)
		if err != nil {
			if websocket.CloseStatus(err) == -1 && ctx.Err() == nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				return status.Errorf(codes.InvalidArgument, "%v", err)
			}
			return nil
		}
		s.read.Add(1)
		if over {
			continue
		}
		m := &clusterv1.ExecRequest{}
		if err := protojson.Unmarshal(data, m); err != nil {
			return status.Errorf(codes.InvalidArgument, "the message is no ExecRequest: %s", protoError(err))
		}
		if o := m.GetOpen(); o != nil {
			if id := o.GetWorkloadId(); id != "" && id != s.workload {
				return status.Errorf(codes.InvalidArgument, "workload_id: %q is not the path's %q", id, s.workload)
			}
			o.WorkloadId = s.workload
		} else if first {
			return status.Error(codes.InvalidArgument, "the first message must be open")
		}
		s.passing.Add(1)
		over = s.stream.Send(m) != nil // downwards hears why
		s.passing.Add(-1)
	}
}

// downwards passes on what the session says until its exit code.
func (s *execSession) downwards(ctx context.Context) error {
	for {
		m, err := s.stream.Recv()
		if errors.Is(err, io.EOF) {
			return status.Error(codes.Unavailable, "the session ended without an exit code")
		}
		if err != nil {
			return err
		}
		data, err := protoOut.Marshal(m)
		if err != nil {
			return err
		}
		if err := s.write(ctx, s.patience, data); err != nil {
			return status.Error(codes.Canceled, err.Error())
		}
		if m.GetExit() != nil {
			return nil
		}
	}
}

func (s *execSession) write(ctx context.Context, within time.Duration, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	s.passing.Add(1)
	defer s.passing.Add(-1)
	return s.ws.Write(ctx, websocket.MessageText, data)
}

// alive returns when the caller no longer answers, or ctx ends. It asks on while
// an answer is due: the caller takes a gateway that says nothing for gone.
func (s *execSession) alive(ctx context.Context) {
	ticker := time.NewTicker(s.ping)
	defer ticker.Stop()
	heard, read := time.Now(), s.read.Load()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		late, cancel := context.WithTimeout(ctx, s.ping)
		err := s.ws.Ping(late)
		cancel()
		switch now := s.read.Load(); {
		case ctx.Err() != nil, err != nil && !errors.Is(err, context.DeadlineExceeded):
			return
		case err == nil, now != read, s.passing.Load() > 0:
			heard, read = time.Now(), now
		case time.Since(heard) >= s.patience:
			return
		}
	}
}

// end tells the caller why the session is over.
func (s *execSession) end(ctx context.Context, why error) {
	st := status.Convert(why)
	var e execEnd
	e.Error.Code, e.Error.Reason, e.Error.Message = codeName(st.Code()), dial.Reason(why), st.Message()
	if data, err := json.Marshal(e); err == nil && s.write(ctx, execBye, data) == nil {
		_ = s.ws.Close(websocket.StatusNormalClosure, "") // the peer may be gone
	}
}

// sameOrigin refuses a websocket that a page from elsewhere opens. Unlike fetch,
// a websocket is not held to CORS by the browser, and a client certificate goes
// along by itself.
func (g *Gateway) sameOrigin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		if origin == "" { // no browser
			next.ServeHTTP(w, r)
			return
		}
		scheme := "http"
		if g.opt.TLS != nil {
			scheme = "https"
		}
		u, err := url.Parse(origin)
		if err != nil || u.Scheme != scheme || !strings.EqualFold(u.Host, r.Host) {
			refuse(w, http.StatusForbidden, fmt.Sprintf("a page of %s asked for a session; only pages of %s://%s may", origin, scheme, r.Host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// tokenOf makes a bearer token of the subprotocol that carries one.
func tokenOf(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, list := range r.Header.Values("Sec-WebSocket-Protocol") {
			for p := range strings.SplitSeq(list, ",") {
				coded, ok := strings.CutPrefix(strings.TrimSpace(p), tokenProtocol)
				if !ok || r.Header.Get("Authorization") != "" {
					continue
				}
				token, err := base64.RawURLEncoding.DecodeString(coded)
				if err != nil {
					refuse(w, http.StatusBadRequest, "the subprotocol "+tokenProtocol+"… must be a token in base64url without padding")
					return
				}
				r.Header.Set("Authorization", "Bearer "+string(token))
			}
		}
		next.ServeHTTP(w, r)
	})
}
