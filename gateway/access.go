package gateway

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/rpc/dial"
)

// Role is a level of permissions. Each role has the permissions of the roles below it.
type Role uint8

// The roles of users.
const (
	Nobody   Role = iota
	Viewer        // reads everything except secrets
	Operator      // changes workloads, cordons and drains nodes
	Admin         // changes the cluster
)

var roleNames = [...]string{"nobody", "viewer", "operator", "admin"}

func (r Role) String() string { return roleNames[r] }

// ParseRole reads viewer, operator or admin.
func ParseRole(s string) (Role, error) {
	for r := Viewer; r <= Admin; r++ {
		if s == r.String() {
			return r, nil
		}
	}
	return Nobody, fmt.Errorf("role %q must be viewer, operator or admin", s)
}

// needs is the role that each call requires; a call that is not listed requires
// Admin. The schedulers check again, for the gateway's certificate and the user's.
var needs = map[string]Role{
	controlv1.AgentControl_ListNodes_FullMethodName:         Viewer,
	controlv1.AgentControl_GetNode_FullMethodName:           Viewer,
	controlv1.AgentControl_ListWorkloads_FullMethodName:     Viewer,
	controlv1.AgentControl_GetWorkload_FullMethodName:       Viewer,
	controlv1.AgentControl_GetClusterSummary_FullMethodName: Viewer,
	clusterv1.Cluster_Status_FullMethodName:                 Viewer,
	clusterv1.Cluster_Events_FullMethodName:                 Viewer,
	clusterv1.Cluster_WatchWorkloads_FullMethodName:         Viewer,
	clusterv1.Cluster_Why_FullMethodName:                    Viewer,
	clusterv1.Cluster_Logs_FullMethodName:                   Viewer,
	clusterv1.Cluster_ListActions_FullMethodName:            Viewer,
	clusterv1.Cluster_ListDrifts_FullMethodName:             Viewer,
	clusterv1.Cluster_ListVolumes_FullMethodName:            Viewer,
	clusterv1.Cluster_ListNamespaces_FullMethodName:         Viewer,
	clusterv1.Cluster_ListRevisions_FullMethodName:          Viewer,
	clusterv1.Cluster_GetRollout_FullMethodName:             Viewer,
	clusterv1.Cluster_Recovery_FullMethodName:               Viewer,

	controlv1.AgentControl_ApplyWorkload_FullMethodName:              Operator,
	controlv1.AgentControl_DeleteWorkload_FullMethodName:             Operator,
	controlv1.AgentControl_RetryWorkload_FullMethodName:              Operator,
	controlv1.AgentControl_SubmitAutomationSuggestion_FullMethodName: Operator,
	clusterv1.Cluster_ApplyWorkloads_FullMethodName:                  Operator,
	clusterv1.Cluster_PlanWorkloads_FullMethodName:                   Operator,
	clusterv1.Cluster_RollBack_FullMethodName:                        Operator,
	clusterv1.Cluster_SetRollout_FullMethodName:                      Operator,
	clusterv1.Cluster_CordonNode_FullMethodName:                      Operator,
	clusterv1.Cluster_AdoptDrift_FullMethodName:                      Operator,
	clusterv1.Cluster_DeleteDrift_FullMethodName:                     Operator,
	clusterv1.Cluster_CollectGarbage_FullMethodName:                  Operator,
	clusterv1.Cluster_DeleteVolume_FullMethodName:                    Admin,
	clusterv1.Cluster_DrainNode_FullMethodName:                       Operator,
	clusterv1.Cluster_Exec_FullMethodName:                            Operator,
}

// caller is the identity behind a request.
type caller struct {
	name string
	// role is as far as the gateway knows. The role of a user's certificate is in the
	// schedulers' record of its join token, and may be higher or lower.
	role Role
	// identity and issued are of the user's certificate; empty without one. The schedulers
	// check that identity, too.
	identity string
	issued   time.Time
	// user is the issuer and subject of a bearer token.
	user string
	from string // IP address
	// namespaces restrict the caller; empty leaves it to the schedulers' own records.
	namespaces []string
}

// tell adds the caller to a call's metadata. The schedulers record it in the history, and use it
// only to take permissions away from the gateway's own.
func (c caller) tell(ctx context.Context) context.Context {
	switch {
	case c.identity != "":
		ctx = metadata.AppendToOutgoingContext(ctx, dial.KeyOnBehalf, c.identity, dial.KeyIssued, strconv.FormatInt(c.issued.UnixNano(), 10))
	case c.user != "":
		ctx = metadata.AppendToOutgoingContext(ctx, dial.KeyUser, c.user)
	}
	if c.from != "" && (c.identity != "" || c.user != "") {
		ctx = metadata.AppendToOutgoingContext(ctx, dial.KeyFrom, c.from)
	}
	if len(c.namespaces) > 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, dial.KeyNamespaces, strings.Join(c.namespaces, ","))
	}
	return ctx
}

// request is the caller and the cluster of one HTTP request, as known found them.
type request struct {
	caller
	backend *backend
	session string // key of sticky routing
	key     string // key of routing by shard: the workload's id
}

type requestKey struct{}

func withRequest(ctx context.Context, r *request) context.Context {
	return context.WithValue(ctx, requestKey{}, r)
}

func requestOf(ctx context.Context) *request {
	r, _ := ctx.Value(requestKey{}).(*request)
	return r
}

// routed is the connection that generated clients use: it checks the caller's role
// and passes the call to a replica of the request's cluster.
type routed struct{}

var _ grpc.ClientConnInterface = routed{}

func (routed) pick(ctx context.Context, method string) (grpc.ClientConnInterface, error) {
	r := requestOf(ctx)
	if r == nil || r.backend == nil {
		return nil, status.Error(codes.Internal, "the request names no cluster")
	}
	least, ok := needs[method]
	if !ok {
		least = Admin
	}
	if err := r.may(least); err != nil {
		return nil, err
	}
	return r.backend.conn(r.session, r.key), nil
}

// may refuses a caller whose role is below least. If the caller has an identity, the schedulers
// check its role: the gateway names it in the call.
func (r *request) may(least Role) error {
	if r.role >= least || r.identity != "" {
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "%s has the role %s, this needs %s", r.name, r.role, least)
}

// Invoke implements grpc.ClientConnInterface.
func (c routed) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	conn, err := c.pick(ctx, method)
	if err != nil {
		return err
	}
	return conn.Invoke(requestOf(ctx).tell(ctx), method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface.
func (c routed) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	conn, err := c.pick(ctx, method)
	if err != nil {
		return nil, err
	}
	return conn.NewStream(requestOf(ctx).tell(ctx), desc, method, opts...)
}
