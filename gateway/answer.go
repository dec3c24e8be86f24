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

// MaxBody is the largest size of a request's body in bytes. It equals the limit of a gRPC message.
const MaxBody = 4 << 20

// protoOut writes JSON as legacy v1 CLIs read it: with names in snake_case.
var protoOut = protojson.MarshalOptions{UseProtoNames: true}

// problem is the body of an error. Code is the name of the gRPC code, and Reason is an error reason that package dial
// defines.
type problem struct {
	Error  string `json:"error"`
	Code   string `json:"code,omitempty"`
	Reason string `json:"reason,omitempty"`
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // an error means that the client has closed the connection
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
	switch dial.Reason(err) {
	case dial.ReasonOtherRevision:
		code = http.StatusPreconditionFailed
	case dial.ReasonOtherRequest:
		code = http.StatusUnprocessableEntity
	}
	if code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, code, problem{Error: st.Message(), Code: codeName(st.Code()), Reason: dial.Reason(err)})
}

func refuse(w http.ResponseWriter, status int, text string) {
	writeJSON(w, status, problem{Error: text})
}

// httpStatus maps a gRPC code to an HTTP status as grpc-gateway does, except that FailedPrecondition is 409: the call
// conflicts with the present state, and the caller can resolve the conflict.
func httpStatus(c codes.Code) int {
	if c == codes.FailedPrecondition {
		return http.StatusConflict
	}
	return runtime.HTTPStatusFromCode(c)
}

// codeName is the name of a code in the gRPC specification.
func codeName(c codes.Code) string {
	names := [...]string{"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
		"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
		"INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"}
	if int(c) < len(names) {
		return names[c]
	}
	return "UNKNOWN"
}

// handleError writes the error of a failed gRPC call as the HTTP response. The generated handlers of /v1 call it.
func handleError(_ context.Context, _ *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, _ *http.Request, err error) {
	if l, ok := w.(*living); ok && l.fail() {
		// The HTTP status has been sent already, so the error is sent as an event of the stream.
		if data, err := m.Marshal(map[string]proto.Message{"error": status.Convert(err).Proto()}); err == nil {
			_, _ = w.Write(data) // an error means that the client has closed the connection
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
