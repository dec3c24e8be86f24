package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/persys/compute/rpc/dial"
)

// MaxBody bounds a request's body in bytes; it is the gRPC API's own bound.
const MaxBody = 4 << 20

// Proto JSON as legacy v1 CLIs read and write it: snake_case out, both forms in,
// fields that nobody knows ignored on the contract's routes only.
var (
	protoOut = protojson.MarshalOptions{UseProtoNames: true}
	protoIn  = protojson.UnmarshalOptions{DiscardUnknown: true}
)

// problem is every error's body; code is the gRPC name of the kind, reason what a
// client does next (package dial has the words).
type problem struct {
	Error  string `json:"error"`
	Code   string `json:"code,omitempty"`
	Reason string `json:"reason,omitempty"`
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the peer may be gone; there is nobody to tell
}

func writeProto(w http.ResponseWriter, m proto.Message) {
	data, err := protoOut.Marshal(m)
	if err != nil {
		writeJSON(w, http.StatusInternalServerError, problem{Error: err.Error()})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data)
}

// fail answers with a gRPC error's status and message.
func fail(w http.ResponseWriter, err error) {
	st := status.Convert(err)
	code := httpStatus(st.Code())
	if code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, code, problem{Error: st.Message(), Code: codeName(st.Code()), Reason: dial.Reason(err)})
}

func refuse(w http.ResponseWriter, status int, text string) {
	writeJSON(w, status, problem{Error: text})
}

// httpStatus is grpc-gateway's mapping, but for what a caller can wait out or
// resolve: a precondition is a conflict with the present state.
func httpStatus(c codes.Code) int {
	if c == codes.FailedPrecondition {
		return http.StatusConflict
	}
	return runtime.HTTPStatusFromCode(c)
}

// codeName is the code as the protocol writes it.
func codeName(c codes.Code) string {
	names := [...]string{"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
		"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
		"INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"}
	if int(c) < len(names) {
		return names[c]
	}
	return "UNKNOWN"
}

// handleError is the generated handlers' way to fail.
func handleError(_ context.Context, _ *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, _ *http.Request, err error) {
	if l, ok := w.(*living); ok && l.fail() {
		// The status is gone; the stream tells as one that fails later does.
		if data, err := m.Marshal(map[string]proto.Message{"error": status.Convert(err).Proto()}); err == nil {
			_, _ = w.Write(data) // the peer may be gone
		}
		return
	}
	var he *runtime.HTTPStatusError
	if errors.As(err, &he) {
		writeJSON(w, he.HTTPStatus, problem{Error: status.Convert(he.Err).Message(), Code: codeName(status.Code(he.Err))})
		return
	}
	fail(w, err)
}
