package rpc

import (
	"testing"

	"google.golang.org/grpc/metadata"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/rpc/dial"
)

// TestEachMessageOfAStreamGetsItsOwnRequestID: a client opens a stream with a request id in the metadata and sends two
// applies on it. Both must be applied: the second must not be treated as a repetition of the first.
func TestEachMessageOfAStreamGetsItsOwnRequestID(t *testing.T) {
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(dial.KeyRequestID, "01900000-0000-7000-8000-000000000001"))
	ids := map[string]bool{}
	for range 2 {
		req := &controlv1.ApplyWorkloadRequest{WorkloadId: "web"}
		if err := ensureRequestID(withoutRequestID(ctx), req); err != nil {
			t.Fatal(err)
		}
		ids[req.GetRequestId()] = true
	}
	if len(ids) != 2 {
		t.Errorf("each message of a stream must get a request id of its own, but the ids are: %v", ids)
	}
}
