package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/spec"
)

// batch creates the log commands for the apply requests of one call. Consecutive requests for small workloads share a
// command, and the state machine judges each workload separately. Such a command has one head (author, time, request
// id) and one receipt (stored answer to a request id). The number of stored receipts is limited. With fewer receipts
// per call, the receipts of older calls stay available longer.
type batch struct {
	s    *Server
	reqs []*controlv1.ApplyWorkloadRequest
	cmds []fsm.Command
	of   [][]int // for each command: the indexes, in reqs, of its requests
	back [][]*controlv1.TakenBack

	autoscale *fsm.Autoscale // see apply

	open open
	ids  map[string]struct{} // ids of the workloads in the open row
}

// open is the log command to which further requests can be added, and its row. A row is the sequence of requests that
// may share one command. Which requests form a row depends only on the requests, so that a repeated call forms the same
// rows and finds their receipts. A row contains no workload twice, because each change of a workload needs a generation
// (order number) of its own.
type open struct {
	first string                  // request id of the first request of the row; "" if there is no row
	seen  int                     // number of requests in the row, including those that were refused
	puts  *commandv1.PutWorkloads // the workloads of the command; nil until a request of the row was accepted
	n     int                     // index of the row's command in cmds
}

const (
	// joinLimit is the maximum size in bytes of a request that may share a command. A command with the maximum number
	// of such requests is far smaller than the size limit of a command.
	joinLimit = 1 << 10
	// joinMember is mixed into the id of a command with several requests. Without it, this command would have the same
	// id as a command with only its first request.
	joinMember = "each"
)

// add creates a command for the i-th request, or adds the request to the open command.
func (b *batch) add(ctx context.Context, i int, joins func(int) bool) error {
	req := b.reqs[i]
	derived := joins != nil && joins(i)
	if !derived || !b.joinable(req) {
		b.open, b.ids = open{}, nil
		return b.addAlone(ctx, i, joins != nil && !derived)
	}
	id := strings.TrimSpace(req.GetWorkloadId())
	_, twice := b.ids[id]
	if b.open.seen++; b.open.first == "" || b.open.seen > fsm.MaxEach || twice {
		b.open = open{first: req.GetRequestId(), seen: 1}
		b.ids = map[string]struct{}{}
	}
	b.ids[id] = struct{}{}
	prepared, err := b.s.prepare(ctx, req, nil, true)
	if err != nil {
		return err
	}
	if b.open.puts == nil {
		head, err := b.s.head(ctx, b.open.first, joinMember)
		if err != nil {
			return err
		}
		b.open.puts, b.open.n = &commandv1.PutWorkloads{Each: true}, len(b.cmds)
		b.cmds = append(b.cmds, &commandv1.Command{Head: head, Body: &commandv1.Command_PutWorkloads{PutWorkloads: b.open.puts}})
		b.of = append(b.of, nil)
	}
	b.note(i, prepared.Command.GetPutWorkloads())
	b.open.puts.Workloads = append(b.open.puts.Workloads, prepared.Command.GetPutWorkloads().GetWorkloads()...)
	b.s.withIngressNetwork(b.open.puts)
	b.of[b.open.n] = append(b.of[b.open.n], i)
	return nil
}

// addAlone creates commands for the i-th request alone. ownID is true if the client has chosen the id of this request,
// so that it may send the request again in another call.
func (b *batch) addAlone(ctx context.Context, i int, ownID bool) error {
	made, err := b.s.applyCommands(ctx, b.reqs[i])
	for _, c := range made {
		for _, p := range c.GetPutWorkloads().GetWorkloads() {
			if err := spec.KeepAutoscale(p, b.autoscale); err != nil {
				return errorf(KindInternal, "%w", err)
			}
		}
		if ownID {
			c.Head.RequestHash = requestHash(callOf(ctx).subject(), controlv1.AgentControl_ApplyWorkload_FullMethodName, b.reqs[i])
		}
		b.note(i, c.GetPutWorkloads())
		b.cmds, b.of = append(b.cmds, c), append(b.of, []int{i})
	}
	return err
}

// note records which fields the i-th request sets back to the values of an earlier revision; the answer warns the user
// of this.
func (b *batch) note(i int, put *commandv1.PutWorkloads) {
	view := b.s.store.View()
	for _, p := range put.GetWorkloads() {
		if _, ok := view.Workload(p.GetId()); ok {
			b.back[i] = takesBack(view, p)
			return // the first member is enough: the others differ only in their ids
		}
	}
}

// joinable reports whether a request stores a single small workload, so that it may share a command. The
// result must depend only on the request.
func (b *batch) joinable(req *controlv1.ApplyWorkloadRequest) bool {
	sp := req.GetSpec()
	return sp != nil && len(req.GetFiles()) == 0 && sp.Count == nil && sp.GetAutoscale() == nil && sp.GetUpdate() == nil && !spec.OnEveryNode(sp) && strings.TrimSpace(req.GetWorkloadId()) != "" &&
		spec.DesiredState(req.GetDesiredState()) != fsm.DesiredDeleted && req.SizeVT() <= joinLimit
}

// verdict returns the state machine's result for one request: the k-th request in the n-th command. r is the result of
// the whole command.
func (b *batch) verdict(n, k int, r fsm.Result) fsm.Result {
	puts := b.cmds[n].GetPutWorkloads()
	if !puts.GetEach() || r.Err() != nil {
		return r
	}
	id := puts.GetWorkloads()[k].GetId()
	if k < len(r.Items) && r.Items[k].ID == id {
		return r.Of(r.Items[k])
	}
	// The results come from the receipt (stored answer) of the first attempt. In that attempt, other requests of the
	// same command may have been refused before they reached the log. So find the result by the workload's id and not
	// by position.
	for _, it := range r.Items {
		if it.ID == id {
			return r.Of(it)
		}
	}
	return fsm.Result{Kind: fsm.Conflict, Index: r.Index, Reason: "workload " + id + " was refused when this request was first sent; the stored answer does not cover it: send the workload again with a new request id"}
}

// deriveRequestIDs gives each request without an id the id of the call plus the position of the request, added to
// bytes 10 and 11. The last bytes are not changed, because a request with several commands numbers its commands there.
// derived reports whether a request has such a derived id; after the call is repeated or forwarded, it still does.
func deriveRequestIDs(req *clusterv1.ApplyWorkloadsRequest) (derived func(int) bool, err error) {
	if req.GetRequestId() == "" {
		return never, nil
	}
	base, err := parseRequestID(req.GetRequestId())
	if err != nil {
		return nil, err
	}
	own := map[int]bool{}
	for i, w := range req.GetWorkloads() {
		id := base
		// Add i to bytes 10 and 11 of the UUID. These bytes contain neither version nor variant, nor the bits that the
		// method head changes.
		binary.BigEndian.PutUint16(id[10:], binary.BigEndian.Uint16(id[10:])+uint16(i))
		if given := w.GetRequestId(); given != "" && given != id.String() {
			own[i] = true
			continue
		}
		w.RequestId = id.String()
	}
	return func(i int) bool { return !own[i] }, nil
}

// maxBatch is the maximum number of applies that are committed together, in one call or in one turn of a
// stream.
const maxBatch = 1024

// ApplyWorkloads implements the call of cluster.v1: it applies many workloads in one call. The state machine accepts
// or refuses each request separately; all accepted requests are committed together. A request without an id gets an id
// that is derived from the id of the call, so that a repeated call applies nothing twice.
func (s *Server) ApplyWorkloads(ctx context.Context, req *clusterv1.ApplyWorkloadsRequest) (*clusterv1.ApplyWorkloadsResponse, error) {
	docs, err := s.requested(ctx, req.GetWorkloads(), req.GetFile(), req.GetName(), maxBatch)
	if err != nil {
		return nil, err
	}
	req.Workloads, req.File = nil, ""
	for _, d := range docs {
		req.Workloads = append(req.Workloads, d.Request)
	}
	derived, err := deriveRequestIDs(req)
	if err != nil {
		return nil, err
	}
	outs := s.apply(ctx, req.GetWorkloads(), derived, nil)
	resp := &clusterv1.ApplyWorkloadsResponse{Results: make([]*controlv1.ApplyWorkloadResponse, len(outs))}
	for i, o := range outs {
		switch edgeKind(o.err) {
		case KindInvalid, KindTooOld:
			o = refused(controlv1.FailureReason_INVALID_SPEC, o.err.Error())
		case KindPermission, KindPrecondition:
			o = refused(controlv1.FailureReason_RUNTIME_ERROR, o.err.Error())
		case KindOtherRevision:
			o = refused(controlv1.FailureReason_RUNTIME_ERROR, o.err.Error())
		case KindOtherRequest:
			if derived(i) {
				return nil, o.err // the id of the whole call was used before for another call
			}
			o = refused(controlv1.FailureReason_RUNTIME_ERROR, o.err.Error())
		default:
			if o.err != nil {
				return nil, o.err // no command of this request is known to be in the log
			}
		}
		o.resp.ErrorMessage = docs[i].Locate(o.resp.GetErrorMessage())
		resp.Results[i] = o.resp
		resp.Index = max(resp.Index, o.resp.GetIndex())
	}
	return resp, nil
}

// ApplyStream implements the call of cluster.v1: it applies workloads from a stream. The messages that arrive
// while one batch is being committed form the next batch. So the order is kept, and a caller that does not
// wait for answers gets larger batches.
func (s *Server) ApplyStream(stream clusterv1.Cluster_ApplyStreamServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	in := make(chan *clusterv1.ApplyStreamRequest, maxBatch)
	failed := make(chan error, 1)
	go func() {
		defer close(in)
		for {
			m, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case in <- m:
			case <-ctx.Done():
				failed <- ctx.Err()
				return
			}
		}
	}()
	for m := range in {
		batch := []*clusterv1.ApplyStreamRequest{m}
		size := proto.Size(m)
	more:
		for len(batch) < 256 && size < maxStreamBatch {
			select {
			case m, ok := <-in:
				if !ok {
					break more
				}
				batch = append(batch, m)
				size += proto.Size(m)
			default:
				break more
			}
		}
		if err := s.applyStreamBatch(ctx, stream, batch); err != nil {
			return err
		}
	}
	if err := <-failed; !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// maxStreamBatch is the size in bytes at which a batch of a stream is full.
const maxStreamBatch = 2 << 20

func (s *Server) applyStreamBatch(ctx context.Context, stream clusterv1.Cluster_ApplyStreamServer, batch []*clusterv1.ApplyStreamRequest) error {
	req := &clusterv1.ApplyWorkloadsRequest{Workloads: make([]*controlv1.ApplyWorkloadRequest, len(batch))}
	for i, m := range batch {
		req.Workloads[i] = m.GetApply()
		if req.Workloads[i] == nil {
			req.Workloads[i] = &controlv1.ApplyWorkloadRequest{}
		}
	}
	r, err := s.call(ctx, clusterv1.Cluster_ApplyWorkloads_FullMethodName, req, func(ctx context.Context, _ any) (any, error) {
		return s.ApplyWorkloads(ctx, req)
	})
	for i, m := range batch {
		out := &clusterv1.ApplyStreamResponse{CorrelationId: m.GetCorrelationId()}
		if err != nil {
			st := status.Convert(err)
			out.ErrorCode, out.ErrorMessage = int32(st.Code()), st.Message()
		} else {
			out.Result = r.(*clusterv1.ApplyWorkloadsResponse).GetResults()[i]
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
	return nil
}
