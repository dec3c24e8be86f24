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

// needs maps each gRPC method to the role that a user with a bearer token needs. A method that is not listed needs the
// role admin. The schedulers check again, with the rights of the gateway and of the user.
var needs = map[string]Role{
	controlv1.AgentControl_ListNodes_FullMethodName:         Viewer,
	controlv1.AgentControl_GetNode_FullMethodName:           Viewer,
	controlv1.AgentControl_ListWorkloads_FullMethodName:     Viewer,
	controlv1.AgentControl_GetWorkload_FullMethodName:       Viewer,
	controlv1.AgentControl_GetClusterSummary_FullMethodName: Viewer,
	clusterv1.Cluster_Status_FullMethodName:                 Viewer,
	clusterv1.Cluster_Events_FullMethodName:                 Viewer,
	clusterv1.Cluster_Audit_FullMethodName:                  Viewer,
	clusterv1.Cluster_WatchWorkloads_FullMethodName:         Viewer,
	clusterv1.Cluster_Why_FullMethodName:                    Viewer,
	clusterv1.Cluster_Logs_FullMethodName:                   Viewer,
	clusterv1.Cluster_ListUsage_FullMethodName:              Viewer,
	clusterv1.Cluster_ListActions_FullMethodName:            Viewer,
	clusterv1.Cluster_ListDrifts_FullMethodName:             Viewer,
	clusterv1.Cluster_ListVolumes_FullMethodName:            Viewer,
	clusterv1.Cluster_GetAccess_FullMethodName:              Nobody,
	clusterv1.Cluster_CheckAccess_FullMethodName:            Nobody,
	clusterv1.Cluster_OpenConsole_FullMethodName:            Nobody,
	clusterv1.Cluster_ListConsoles_FullMethodName:           Nobody,
	clusterv1.Cluster_EndConsole_FullMethodName:             Nobody,
	clusterv1.Cluster_ListRoles_FullMethodName:              Viewer,
	clusterv1.Cluster_ListBindings_FullMethodName:           Admin,
	clusterv1.Cluster_ListAccounts_FullMethodName:           Admin,
	clusterv1.Cluster_ListNamespaces_FullMethodName:         Viewer,
	clusterv1.Cluster_ListPolicies_FullMethodName:           Viewer,
	clusterv1.Cluster_ListNetworks_FullMethodName:           Viewer,
	clusterv1.Cluster_GetNetwork_FullMethodName:             Viewer,
	clusterv1.Cluster_CheckNetwork_FullMethodName:           Viewer,
	clusterv1.Cluster_Trace_FullMethodName:                  Viewer,
	clusterv1.Cluster_ListObjects_FullMethodName:            Viewer,
	clusterv1.Cluster_GetConfig_FullMethodName:              Viewer,
	clusterv1.Cluster_ListScrapeTargets_FullMethodName:      Viewer,
	clusterv1.Cluster_ListRevisions_FullMethodName:          Viewer,
	clusterv1.Cluster_GetRollout_FullMethodName:             Viewer,
	clusterv1.Cluster_Recovery_FullMethodName:               Viewer,
	clusterv1.Cluster_GetRebalancePolicy_FullMethodName:     Viewer,
	clusterv1.Cluster_PreviewRebalance_FullMethodName:       Viewer,
	clusterv1.Cluster_MirrorStatus_FullMethodName:           Viewer,

	controlv1.AgentControl_ApplyWorkload_FullMethodName:              Operator,
	controlv1.AgentControl_DeleteWorkload_FullMethodName:             Operator,
	controlv1.AgentControl_RetryWorkload_FullMethodName:              Operator,
	controlv1.AgentControl_SubmitAutomationSuggestion_FullMethodName: Operator,
	clusterv1.Cluster_ApplyWorkloads_FullMethodName:                  Operator,
	clusterv1.Cluster_PlanWorkloads_FullMethodName:                   Operator,
	clusterv1.Cluster_RollBack_FullMethodName:                        Operator,
	clusterv1.Cluster_SetRollout_FullMethodName:                      Operator,
	clusterv1.Cluster_StartRun_FullMethodName:                        Operator,
	clusterv1.Cluster_ScaleGroup_FullMethodName:                      Operator,
	clusterv1.Cluster_CreateNetwork_FullMethodName:                   Operator,
	clusterv1.Cluster_DeleteNetwork_FullMethodName:                   Operator,
	clusterv1.Cluster_PutObject_FullMethodName:                       Operator,
	clusterv1.Cluster_RollBackObject_FullMethodName:                  Operator,
	clusterv1.Cluster_DeleteObject_FullMethodName:                    Operator,
	clusterv1.Cluster_CordonNode_FullMethodName:                      Operator,
	clusterv1.Cluster_LabelNode_FullMethodName:                       Operator,
	clusterv1.Cluster_TaintNode_FullMethodName:                       Operator,
	clusterv1.Cluster_AdoptDrift_FullMethodName:                      Operator,
	clusterv1.Cluster_DeleteDrift_FullMethodName:                     Operator,
	clusterv1.Cluster_CollectGarbage_FullMethodName:                  Operator,
	clusterv1.Cluster_CreateVolume_FullMethodName:                    Operator,
	clusterv1.Cluster_DeleteVolume_FullMethodName:                    Admin,
	clusterv1.Cluster_MoveVolume_FullMethodName:                      Admin,
	clusterv1.Cluster_DrainNode_FullMethodName:                       Operator,
	clusterv1.Cluster_SetRebalancePolicy_FullMethodName:              Operator,
	clusterv1.Cluster_ApplyRebalance_FullMethodName:                  Operator,
	clusterv1.Cluster_Exec_FullMethodName:                            Operator,
}

// caller is the identity behind a request.
type caller struct {
	name string
	// role is the role that a bearer token gives. The gateway does not know the role of a caller with a
	// certificate; the schedulers check the caller's identity.
	role Role
	// identity and issued (the time of issue) come from the user's certificate; they are empty for a caller
	// without certificate.
	identity string
	issued   time.Time
	// user is the issuer and subject of a bearer token, and groups are the groups in it.
	user   string
	groups string // the groups in the form that dial.EncodeGroups returns
	// token is the bearer token of an account (an identity for a program); the schedulers check this token. account is
	// the account for which the gateway itself has verified an OIDC token.
	token, account string
	// console is the token of a session of the web console. The gateway passes it on, and the schedulers check it.
	console string
	from    string // IP address from which the request came
	// namespaces are the namespaces to which the gateway restricts the caller. If the list is empty, only the
	// schedulers restrict the caller.
	namespaces []string
}

func (c caller) isAccount() bool { return c.token != "" || c.account != "" }

// unproven reports whether the gateway cannot verify the caller itself, so that the schedulers must do it: the caller
// uses an account or a session of the console.
func (c caller) unproven() bool { return c.isAccount() || c.console != "" }

// tell adds the caller to the metadata of a call. The schedulers record the caller in the history. A call has the
// rights of the gateway's certificate; the caller's name can only reduce them.
func (c caller) tell(ctx context.Context) context.Context {
	switch {
	case c.identity != "":
		ctx = metadata.AppendToOutgoingContext(ctx, dial.KeyOnBehalf, c.identity, dial.KeyIssued, strconv.FormatInt(c.issued.UnixNano(), 10))
	case c.token != "":
		ctx = metadata.AppendToOutgoingContext(ctx, dial.KeyAccountToken, c.token)
	case c.console != "":
		ctx = metadata.AppendToOutgoingContext(ctx, dial.KeyConsole, c.console)
	case c.account != "":
		ctx = metadata.AppendToOutgoingContext(ctx, dial.KeyAccount, c.account)
	case c.user != "":
		access := "none"
		if c.role > Nobody {
			access = c.role.String()
		}
		ctx = metadata.AppendToOutgoingContext(ctx, dial.KeyUser, c.user, dial.KeyAccess, access)
		if c.groups != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, dial.KeyGroups, c.groups)
		}
	}
	if c.from != "" && (c.identity != "" || c.user != "" || c.unproven()) {
		ctx = metadata.AppendToOutgoingContext(ctx, dial.KeyFrom, c.from)
	}
	if len(c.namespaces) > 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, dial.KeyNamespaces, strings.Join(c.namespaces, ","))
	}
	return ctx
}

// request is the caller and the cluster of one HTTP request. The method known makes it.
type request struct {
	caller
	backend *backend
	session string // key for sticky routing
	key     string // key for routing by shard: the workload's id
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
	if err := r.may(ctx, least); err != nil {
		return nil, err
	}
	return r.backend.conn(r.session, r.key), nil
}

// may refuses a caller whose role is below least. If the caller has a certificate, may accepts the call and leaves the
// check to the schedulers, which get the caller's identity with the call. If the caller is an account, has a session of the
// console, or is a user with a bearer token and too low a role, may asks the schedulers who the caller is, because role
// bindings may give the caller further roles, and accepts the call if they know the caller.
func (r *request) may(ctx context.Context, least Role) error {
	if r.role >= least && !r.unproven() || least == Nobody || r.identity != "" {
		return nil
	}
	if r.unproven() {
		return r.confirm(ctx)
	}
	if r.user != "" && r.confirm(ctx) == nil {
		return nil
	}
	return status.Errorf(codes.PermissionDenied, "%s has the role %s, this call needs %s", r.name, r.role, least)
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
