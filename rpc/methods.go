package rpc

import (
	"github.com/persys/compute/pki"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

// class says which replica answers a method.
type class uint8

const (
	local  class = iota // the replica that was asked
	leader              // the leader only: passed on, one hop
	read                // by the level the caller asks for
)

// who is a set of roles.
type who uint8

const (
	viewers    who = 1 << iota // any user
	operators                  // users who may change workloads and nodes
	admins                     // users who may change the cluster
	agents                     // agents, as their own node
	gateways                   // gateways, for their users
	schedulers                 // other replicas
	strangers                  // whoever has no certificate

	anybody = viewers | operators | admins | agents | gateways | schedulers
)

// effect says whether a call whose fate is unknown may be made again.
type effect uint8

const (
	repeatable effect = iota // changes nothing
	idempotent               // twice is as good as once: heartbeats, registrations
	receipted                // applied at most once under its request id
	once                     // must not be made again
)

// method is a row of the table.
type method struct {
	class  class
	allow  who
	effect effect
	op     string // for messages
}

const everyUser = viewers | operators | admins | gateways

// methods is the whole policy; a method that is not in it is refused. What those may who
// act only in some namespaces is in reaches.
var methods = map[string]method{
	controlv1.AgentControl_RegisterNode_FullMethodName:               {leader, agents | admins, idempotent, "register node"},
	controlv1.AgentControl_Heartbeat_FullMethodName:                  {leader, agents | admins, idempotent, "heartbeat"},
	controlv1.AgentControl_ApplyWorkload_FullMethodName:              {leader, operators | admins | gateways, receipted, "apply workload"},
	controlv1.AgentControl_DeleteWorkload_FullMethodName:             {leader, operators | admins | gateways, receipted, "delete workload"},
	controlv1.AgentControl_RetryWorkload_FullMethodName:              {leader, operators | admins | gateways, receipted, "retry workload"},
	controlv1.AgentControl_SubmitAutomationSuggestion_FullMethodName: {leader, operators | admins | gateways, receipted, "automation suggestion"},
	controlv1.AgentControl_ListNodes_FullMethodName:                  {read, everyUser, repeatable, "list nodes"},
	controlv1.AgentControl_GetNode_FullMethodName:                    {read, everyUser | agents, repeatable, "get node"},
	controlv1.AgentControl_ListWorkloads_FullMethodName:              {read, everyUser, repeatable, "list workloads"},
	controlv1.AgentControl_GetWorkload_FullMethodName:                {read, everyUser, repeatable, "get workload"},
	controlv1.AgentControl_GetClusterSummary_FullMethodName:          {read, everyUser, repeatable, "cluster summary"},
	// Each message of a stream is judged as the call it stands for.
	controlv1.AgentControl_ControlStream_FullMethodName: {local, operators | admins | gateways | agents, idempotent, "control stream"},

	clusterv1.Cluster_Status_FullMethodName:         {local, everyUser | agents | schedulers, repeatable, "status"},
	clusterv1.Cluster_ListRevisions_FullMethodName:  {read, everyUser, repeatable, "list revisions"},
	clusterv1.Cluster_RollBack_FullMethodName:       {leader, operators | admins | gateways, receipted, "roll back"},
	clusterv1.Cluster_GetRollout_FullMethodName:     {read, everyUser, repeatable, "get rollout"},
	clusterv1.Cluster_SetRollout_FullMethodName:     {leader, operators | admins | gateways, receipted, "set rollout"},
	clusterv1.Cluster_Events_FullMethodName:         {local, everyUser, repeatable, "events"},
	clusterv1.Cluster_WatchWorkloads_FullMethodName: {local, everyUser, repeatable, "watch workloads"},
	clusterv1.Cluster_Why_FullMethodName:            {local, everyUser, repeatable, "why"},
	clusterv1.Cluster_ApplyWorkloads_FullMethodName: {leader, operators | admins | gateways, receipted, "apply workloads"},
	// It tells whether a guessed secret is the stored one, so it is not for viewers.
	clusterv1.Cluster_PlanWorkloads_FullMethodName: {read, operators | admins | gateways, repeatable, "plan workloads"},
	clusterv1.Cluster_ApplyStream_FullMethodName:   {local, operators | admins | gateways, idempotent, "apply stream"},
	clusterv1.Cluster_CordonNode_FullMethodName:    {leader, operators | admins | gateways, receipted, "cordon node"},
	clusterv1.Cluster_DrainNode_FullMethodName:     {leader, operators | admins | gateways, receipted, "drain node"},
	clusterv1.Cluster_RemoveNode_FullMethodName:    {leader, admins | gateways, receipted, "remove node"},
	clusterv1.Cluster_FenceNode_FullMethodName:     {leader, admins | gateways, receipted, "fence node"},
	clusterv1.Cluster_Logs_FullMethodName:          {local, everyUser, repeatable, "logs"},
	// A session in a workload is for whoever may change it. Its record is kept by the leader.
	clusterv1.Cluster_Exec_FullMethodName:               {local, operators | admins | gateways, once, "exec"},
	clusterv1.Cluster_RecordSession_FullMethodName:      {leader, schedulers, idempotent, "record session"},
	clusterv1.Cluster_ListActions_FullMethodName:        {local, everyUser, repeatable, "list actions"},
	clusterv1.Cluster_ListDrifts_FullMethodName:         {read, everyUser, repeatable, "list drifts"},
	clusterv1.Cluster_AdoptDrift_FullMethodName:         {leader, operators | admins | gateways, receipted, "adopt drift"},
	clusterv1.Cluster_DeleteDrift_FullMethodName:        {leader, operators | admins | gateways, receipted, "delete drift"},
	clusterv1.Cluster_CollectGarbage_FullMethodName:     {leader, operators | admins | gateways, idempotent, "collect garbage"},
	clusterv1.Cluster_ListVolumes_FullMethodName:        {local, everyUser, repeatable, "list volumes"},
	clusterv1.Cluster_DeleteVolume_FullMethodName:       {leader, admins | gateways, once, "delete volume"},
	clusterv1.Cluster_ListNamespaces_FullMethodName:     {read, everyUser, repeatable, "list namespaces"},
	clusterv1.Cluster_PutNamespace_FullMethodName:       {leader, admins | gateways, receipted, "put namespace"},
	clusterv1.Cluster_DeleteNamespace_FullMethodName:    {leader, admins | gateways, receipted, "delete namespace"},
	clusterv1.Cluster_SetMode_FullMethodName:            {leader, admins | gateways, receipted, "set mode"},
	clusterv1.Cluster_TransferLeadership_FullMethodName: {leader, admins | gateways | schedulers, once, "transfer leadership"},
	clusterv1.Cluster_RemoveReplica_FullMethodName:      {leader, admins | gateways, once, "remove replica"},
	// A backup is the whole state. A restore is passed on to the leader as a stream.
	clusterv1.Cluster_CreateBackup_FullMethodName:  {local, admins, repeatable, "create backup"},
	clusterv1.Cluster_RestoreBackup_FullMethodName: {local, admins, once, "restore backup"},
	clusterv1.Cluster_ClusterKey_FullMethodName:    {local, schedulers, repeatable, "cluster key"},
	clusterv1.Cluster_Recovery_FullMethodName:      {leader, everyUser, repeatable, "recovery"},
	clusterv1.Cluster_RestoreMirror_FullMethodName: {leader, admins | gateways, once, "restore mirror"},
	clusterv1.Cluster_ImportMirror_FullMethodName:  {leader, admins | gateways, once, "import mirror"},

	// A certificate for a token; all other calls need one.
	clusterv1.Trust_Enrol_FullMethodName:           {leader, anybody | strangers, idempotent, "enrol"},
	clusterv1.Trust_Renew_FullMethodName:           {leader, anybody, idempotent, "renew certificate"},
	clusterv1.Trust_Bundle_FullMethodName:          {local, anybody, repeatable, "trust bundle"},
	clusterv1.Trust_CreateToken_FullMethodName:     {leader, admins, receipted, "create token"},
	clusterv1.Trust_ListTokens_FullMethodName:      {leader, admins, repeatable, "list tokens"},
	clusterv1.Trust_DeleteToken_FullMethodName:     {leader, admins, receipted, "delete token"},
	clusterv1.Trust_ListIdentities_FullMethodName:  {leader, admins, repeatable, "list identities"},
	clusterv1.Trust_Revoke_FullMethodName:          {leader, admins, receipted, "revoke"},
	clusterv1.Trust_ListAuthorities_FullMethodName: {leader, everyUser, repeatable, "list authorities"},
	clusterv1.Trust_PutAuthority_FullMethodName:    {leader, admins, receipted, "put authority"},
	clusterv1.Trust_DropAuthority_FullMethodName:   {leader, admins, receipted, "drop authority"},
	clusterv1.Trust_RotateGossip_FullMethodName:    {leader, admins, receipted, "rotate gossip key"},

	"/grpc.health.v1.Health/Check":                                   {local, anybody, repeatable, "health"},
	"/grpc.health.v1.Health/List":                                    {local, anybody, repeatable, "health"},
	"/grpc.health.v1.Health/Watch":                                   {local, anybody, repeatable, "health"},
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      {local, anybody, repeatable, "reflection"},
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": {local, anybody, repeatable, "reflection"},
}

// roles of an identity. What a user may do is what the join token gave; a user
// whose certificate is from elsewhere is an operator, and admin is the admin.
func (s *Server) roles(id pki.Identity) who {
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
