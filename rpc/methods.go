package rpc

import (
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/pki"
)

// class says which replica answers a method.
type class uint8

const (
	local  class = iota // the replica that received the call
	leader              // the leader; other replicas forward the call, one hop at most
	read                // by the read level that the caller asks for, see read.go
)

// roles is a set of roles of callers.
type roles uint8

const (
	viewers    roles = 1 << iota // any user
	operators                    // users who may change workloads and nodes
	admins                       // users who may change the cluster
	agents                       // agents, each for its own node only
	gateways                     // gateways, for their users
	schedulers                   // other replicas
	strangers                    // callers without a certificate

	anybody   = viewers | operators | admins | agents | gateways | schedulers
	everyUser = viewers | operators | admins | gateways
)

// repetition says whether a call whose outcome is unknown may be made again.
type repetition uint8

const (
	repeatable repetition = iota // the call changes nothing
	idempotent                   // making it twice has the effect of making it once: heartbeats, registrations
	receipted                    // the state machine applies it at most once under its request id
	once                         // it must not be made again
)

// namespaceRule says how a method treats callers who may act in some namespaces only.
type namespaceRule uint8

const (
	unclassified namespaceRule = iota // no rule was chosen: refused, and TestPermissions fails
	clusterWide                       // refused: the call concerns the whole cluster
	general                           // allowed: the call shows and changes nothing of any namespace
	namespaced                        // allowed: the handler or the state machine checks the namespace
)

// method is a row of the policy table.
type method struct {
	class      class
	allow      roles
	repetition repetition
	namespaces namespaceRule
	op         string // the call's name in errors and audit events
}

// methods is the whole policy, one row per method. A method without a row is refused.
var methods = map[string]method{
	controlv1.AgentControl_RegisterNode_FullMethodName:               {leader, agents | admins, idempotent, clusterWide, "register node"},
	controlv1.AgentControl_Heartbeat_FullMethodName:                  {leader, agents | admins, idempotent, clusterWide, "heartbeat"},
	controlv1.AgentControl_ApplyWorkload_FullMethodName:              {leader, operators | admins | gateways, receipted, namespaced, "apply workload"},
	controlv1.AgentControl_DeleteWorkload_FullMethodName:             {leader, operators | admins | gateways, receipted, namespaced, "delete workload"},
	controlv1.AgentControl_RetryWorkload_FullMethodName:              {leader, operators | admins | gateways, receipted, namespaced, "retry workload"},
	controlv1.AgentControl_SubmitAutomationSuggestion_FullMethodName: {leader, operators | admins | gateways, receipted, namespaced, "automation suggestion"},
	controlv1.AgentControl_ListNodes_FullMethodName:                  {read, everyUser, repeatable, general, "list nodes"},
	controlv1.AgentControl_GetNode_FullMethodName:                    {read, everyUser | agents, repeatable, general, "get node"},
	controlv1.AgentControl_ListWorkloads_FullMethodName:              {read, everyUser, repeatable, namespaced, "list workloads"},
	controlv1.AgentControl_GetWorkload_FullMethodName:                {read, everyUser, repeatable, namespaced, "get workload"},
	controlv1.AgentControl_GetClusterSummary_FullMethodName:          {read, everyUser, repeatable, general, "cluster summary"},
	// Each message of the stream is checked again under the row of the call that it carries.
	controlv1.AgentControl_ControlStream_FullMethodName: {local, operators | admins | gateways | agents, idempotent, namespaced, "control stream"},

	clusterv1.Cluster_Status_FullMethodName:         {local, everyUser | agents | schedulers, repeatable, general, "status"},
	clusterv1.Cluster_ListRevisions_FullMethodName:  {read, everyUser, repeatable, namespaced, "list revisions"},
	clusterv1.Cluster_RollBack_FullMethodName:       {leader, operators | admins | gateways, receipted, namespaced, "roll back"},
	clusterv1.Cluster_GetRollout_FullMethodName:     {read, everyUser, repeatable, namespaced, "get rollout"},
	clusterv1.Cluster_SetRollout_FullMethodName:     {leader, operators | admins | gateways, receipted, namespaced, "set rollout"},
	clusterv1.Cluster_Events_FullMethodName:         {local, everyUser, repeatable, namespaced, "events"},
	clusterv1.Cluster_WatchWorkloads_FullMethodName: {local, everyUser, repeatable, namespaced, "watch workloads"},
	clusterv1.Cluster_Why_FullMethodName:            {local, everyUser, repeatable, namespaced, "why"},
	clusterv1.Cluster_ApplyWorkloads_FullMethodName: {leader, operators | admins | gateways, receipted, namespaced, "apply workloads"},
	// A plan reveals whether a guessed secret equals the stored one, so viewers may not make one.
	clusterv1.Cluster_PlanWorkloads_FullMethodName: {read, operators | admins | gateways, repeatable, namespaced, "plan workloads"},
	clusterv1.Cluster_ApplyStream_FullMethodName:   {local, operators | admins | gateways, idempotent, namespaced, "apply stream"},
	clusterv1.Cluster_CordonNode_FullMethodName:    {leader, operators | admins | gateways, receipted, clusterWide, "cordon node"},
	clusterv1.Cluster_DrainNode_FullMethodName:     {leader, operators | admins | gateways, receipted, clusterWide, "drain node"},
	clusterv1.Cluster_RemoveNode_FullMethodName:    {leader, admins | gateways, receipted, clusterWide, "remove node"},
	clusterv1.Cluster_FenceNode_FullMethodName:     {leader, admins | gateways, receipted, clusterWide, "fence node"},
	clusterv1.Cluster_Logs_FullMethodName:          {local, everyUser, repeatable, namespaced, "logs"},
	// A session needs the right to change the workload. The leader commits its audit events.
	clusterv1.Cluster_Exec_FullMethodName:               {local, operators | admins | gateways, once, namespaced, "exec"},
	clusterv1.Cluster_RecordSession_FullMethodName:      {leader, schedulers, idempotent, clusterWide, "record session"},
	clusterv1.Cluster_ListActions_FullMethodName:        {local, everyUser, repeatable, namespaced, "list actions"},
	clusterv1.Cluster_ListDrifts_FullMethodName:         {read, everyUser, repeatable, namespaced, "list drifts"},
	clusterv1.Cluster_AdoptDrift_FullMethodName:         {leader, operators | admins | gateways, receipted, namespaced, "adopt drift"},
	clusterv1.Cluster_DeleteDrift_FullMethodName:        {leader, operators | admins | gateways, receipted, namespaced, "delete drift"},
	clusterv1.Cluster_CollectGarbage_FullMethodName:     {leader, operators | admins | gateways, idempotent, clusterWide, "collect garbage"},
	clusterv1.Cluster_ListVolumes_FullMethodName:        {local, everyUser, repeatable, clusterWide, "list volumes"},
	clusterv1.Cluster_DeleteVolume_FullMethodName:       {leader, admins | gateways, once, clusterWide, "delete volume"},
	clusterv1.Cluster_ListNamespaces_FullMethodName:     {read, everyUser, repeatable, namespaced, "list namespaces"},
	clusterv1.Cluster_PutNamespace_FullMethodName:       {leader, admins | gateways, receipted, clusterWide, "put namespace"},
	clusterv1.Cluster_DeleteNamespace_FullMethodName:    {leader, admins | gateways, receipted, clusterWide, "delete namespace"},
	clusterv1.Cluster_SetMode_FullMethodName:            {leader, admins | gateways, receipted, clusterWide, "set mode"},
	clusterv1.Cluster_TransferLeadership_FullMethodName: {leader, admins | gateways | schedulers, once, clusterWide, "transfer leadership"},
	clusterv1.Cluster_RemoveReplica_FullMethodName:      {leader, admins | gateways, once, clusterWide, "remove replica"},
	// A backup holds the whole state. RestoreBackup forwards its own stream to the leader.
	clusterv1.Cluster_CreateBackup_FullMethodName:  {local, admins, repeatable, clusterWide, "create backup"},
	clusterv1.Cluster_RestoreBackup_FullMethodName: {local, admins, once, clusterWide, "restore backup"},
	clusterv1.Cluster_ClusterKey_FullMethodName:    {local, schedulers, repeatable, clusterWide, "cluster key"},
	clusterv1.Cluster_Recovery_FullMethodName:      {leader, everyUser, repeatable, clusterWide, "recovery"},
	clusterv1.Cluster_RestoreMirror_FullMethodName: {leader, admins | gateways, once, clusterWide, "restore mirror"},
	clusterv1.Cluster_ImportMirror_FullMethodName:  {leader, admins | gateways, once, clusterWide, "import mirror"},

	// Enrol trades a join token for a certificate. Every other call needs a certificate.
	clusterv1.Trust_Enrol_FullMethodName:           {leader, anybody | strangers, idempotent, general, "enrol"},
	clusterv1.Trust_Renew_FullMethodName:           {leader, anybody, idempotent, general, "renew certificate"},
	clusterv1.Trust_Bundle_FullMethodName:          {local, anybody, repeatable, general, "trust bundle"},
	clusterv1.Trust_CreateToken_FullMethodName:     {leader, admins, receipted, clusterWide, "create token"},
	clusterv1.Trust_ListTokens_FullMethodName:      {leader, admins, repeatable, clusterWide, "list tokens"},
	clusterv1.Trust_DeleteToken_FullMethodName:     {leader, admins, receipted, clusterWide, "delete token"},
	clusterv1.Trust_ListIdentities_FullMethodName:  {leader, admins, repeatable, clusterWide, "list identities"},
	clusterv1.Trust_Revoke_FullMethodName:          {leader, admins, receipted, clusterWide, "revoke"},
	clusterv1.Trust_ListAuthorities_FullMethodName: {leader, everyUser, repeatable, general, "list authorities"},
	clusterv1.Trust_PutAuthority_FullMethodName:    {leader, admins, receipted, clusterWide, "put authority"},
	clusterv1.Trust_DropAuthority_FullMethodName:   {leader, admins, receipted, clusterWide, "drop authority"},
	clusterv1.Trust_RotateGossip_FullMethodName:    {leader, admins, receipted, clusterWide, "rotate gossip key"},

	"/grpc.health.v1.Health/Check":                                   {local, anybody, repeatable, general, "health"},
	"/grpc.health.v1.Health/List":                                    {local, anybody, repeatable, general, "health"},
	"/grpc.health.v1.Health/Watch":                                   {local, anybody, repeatable, general, "health"},
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      {local, anybody, repeatable, general, "reflection"},
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": {local, anybody, repeatable, general, "reflection"},
}

// rolesOf returns the roles of an identity. A user has the access level of the join token with
// which it enrolled. A user whose certificate was issued by another CA is an operator, or an admin
// if its id is "admin".
func (s *Server) rolesOf(id pki.Identity) roles {
	switch id.Role {
	case pki.RoleScheduler:
		return schedulers
	case pki.RoleAgent:
		return agents
	case pki.RoleGateway:
		return gateways
	case pki.RoleUser:
		if id.IsAnonymous() {
			return anybody
		}
		if a, ok := s.store.View().Admission(string(id.Role), id.ID); ok && !id.Mapped {
			switch a.Access {
			case "viewer":
				return viewers
			case "operator":
				return viewers | operators
			case "admin":
				return viewers | operators | admins
			}
		}
		if id.IsAdmin() {
			return viewers | operators | admins
		}
		return viewers | operators
	}
	return 0
}
