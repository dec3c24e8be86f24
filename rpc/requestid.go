package rpc

import (
	"context"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/rpc/dial"
)

// ensureRequestID gives a mutation the id under which it is applied at most once: the one in its
// field, the one in the metadata, or a new one.
func ensureRequestID(ctx context.Context, req any) error {
	switch r := req.(type) {
	case *controlv1.HeartbeatRequest, *controlv1.RegisterNodeRequest:
		return nil
	case *controlv1.ApplyWorkloadRequest:
		// The most frequent mutation avoids reflection.
		return settleRequestID(ctx, r.GetRequestId(), func(id string) { r.RequestId = id })
	case proto.Message:
		m := r.ProtoReflect()
		fd := m.Descriptor().Fields().ByName("request_id")
		if fd == nil {
			return nil
		}
		return settleRequestID(ctx, m.Get(fd).String(), func(id string) { m.Set(fd, protoreflect.ValueOfString(id)) })
	}
	return nil
}

func settleRequestID(ctx context.Context, id string, set func(string)) error {
	if id == "" {
		id = told(ctx, dial.KeyRequestID)
		if id == "" {
			fresh, err := uuid.NewV7()
			if err != nil {
				return errorf(KindInternal, "minting a request id: %w", err)
			}
			set(fresh.String())
			return nil
		}
		set(id)
	}
	_, err := parseRequestID(id)
	return err
}

func parseRequestID(id string) (uuid.UUID, error) {
	u, err := uuid.Parse(id)
	if err != nil || u.Version() != 7 || u.Variant() != uuid.RFC4122 {
		return uuid.UUID{}, errorf(KindInvalid, "request_id %q must be a UUID of version 7", id)
	}
	return u, nil
}
