package rpc

import (
	"github.com/persys/compute/access"
	clusterv1 "github.com/persys/compute/api/cluster/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
)

// class says which replica answers a method: the one that is called (local), the leader, or, for a read, one that
// depends on the read level.
type class uint8

const (
	local  class = iota // the replica that receives the call answers it
	leader              // the leader answers; another replica forwards the call, at most once
	read                // the read level that the caller asks for decides which replica answers (read.go)
)

// callers is a set of kinds of programs (schedulers, agents, gateways) that may call a method.
type callers uint8

const (
	agents     callers = 1 << iota // an agent may make the call, for its own node only
	gateways                       // a gateway may make the call, on behalf of its users
	schedulers                     // another scheduler replica may make the call
	strangers                      // a caller without a certificate may make the call

	machines         = agents | gateways | schedulers
	nobody   callers = 0
)

// repetition says whether a call may be repeated if its outcome is unknown.
type repetition uint8

const (
	repeatable repetition = iota // the call changes nothing
	idempotent                   // may be repeated: two calls have the same effect as one, such as heartbeats
	receipted                    // may be repeated: the state machine applies the call at most once per request id
	once                         // the call must not be repeated, because it would be applied twice
)

// namespaceRule says what a method does for confined callers: users who have the method's permission only in some
// namespaces.
type namespaceRule uint8

const (
	// unclassified: the method's row in the table has no namespace rule. Its calls are refused, and TestPermissions
	// fails.
	unclassified namespaceRule = iota
	clusterWide                // confined callers are refused, because the call concerns the whole cluster
	// general: users with rights only in some namespaces may make the call, because it neither shows nor changes
	// anything that belongs to a namespace.
	general
	namespaced // confined callers are allowed; the handler or the state machine checks the namespace
)

// method is a row of the policy table.
type method struct {
	class      class
	permission access.Permission // permission that people need
	callers    callers           // kinds of machines that may call the method
	repetition repetition
	namespaces namespaceRule
	op         string // name of the call in errors and audit events
}

// methods is the policy table, with one row per method. Calls of a method without a row are refused.
var methods = map[string]method{
	controlv1.AgentControl_RegisterNode_FullMethodName:               {leader, access.Fence, agents, idempotent, clusterWide, "register node"},
	controlv1.AgentControl_Heartbeat_FullMethodName:                  {leader, access.Fence, agents, idempotent, clusterWide, "heartbeat"},
	controlv1.AgentControl_WatchNetworkNames_FullMethodName:          {local, access.Fence, agents, repeatable, clusterWide, "watch network names"},
	controlv1.AgentControl_ApplyWorkload_FullMethodName:              {leader, access.Deploy, gateways, receipted, namespaced, "apply workload"},
	controlv1.AgentControl_DeleteWorkload_FullMethodName:             {leader, access.Deploy, gateways, receipted, namespaced, "delete workload"},
	controlv1.AgentControl_RetryWorkload_FullMethodName:              {leader, access.Deploy, gateways, receipted, namespaced, "retry workload"},
	controlv1.AgentControl_SubmitAutomationSuggestion_FullMethodName: {leader, access.Deploy, gateways, receipted, namespaced, "automation suggestion"},
	controlv1.AgentControl_ListNodes_FullMethodName:                  {read, access.Read, gateways, repeatable, general, "list nodes"},
	controlv1.AgentControl_GetNode_FullMethodName:                    {read, access.Read, gateways | agents, repeatable, general, "get node"},
	controlv1.AgentControl_ListWorkloads_FullMethodName:              {read, access.Read, gateways, repeatable, namespaced, "list workloads"},
	controlv1.AgentControl_GetWorkload_FullMethodName:                {read, access.Read, gateways, repeatable, namespaced, "get workload"},
	controlv1.AgentControl_GetClusterSummary_FullMethodName:          {read, access.Read, gateways, repeatable, general, "cluster summary"},
	// Each message of this stream carries a call, and is checked again by the row of that call.
	controlv1.AgentControl_ControlStream_FullMethodName: {local, access.Deploy, gateways | agents, idempotent, namespaced, "control stream"},

	clusterv1.Cluster_Status_FullMethodName:         {local, access.Read, gateways | agents | schedulers, repeatable, general, "status"},
	clusterv1.Cluster_ListRevisions_FullMethodName:  {read, access.Read, gateways, repeatable, namespaced, "list revisions"},
	clusterv1.Cluster_RollBack_FullMethodName:       {leader, access.Deploy, gateways, receipted, namespaced, "roll back"},
	clusterv1.Cluster_GetRollout_FullMethodName:     {read, access.Read, gateways, repeatable, namespaced, "get rollout"},
	clusterv1.Cluster_SetRollout_FullMethodName:     {leader, access.Deploy, gateways, receipted, namespaced, "set rollout"},
	clusterv1.Cluster_StartRun_FullMethodName:       {leader, access.Deploy, gateways, receipted, namespaced, "start run"},
	clusterv1.Cluster_ScaleGroup_FullMethodName:     {leader, access.Deploy, gateways, receipted, namespaced, "scale group"},
	clusterv1.Cluster_Events_FullMethodName:         {local, access.Read, gateways, repeatable, namespaced, "events"},
	clusterv1.Cluster_Audit_FullMethodName:          {local, access.Read, gateways, repeatable, namespaced, "audit"},
	clusterv1.Cluster_WatchWorkloads_FullMethodName: {local, access.Read, gateways, repeatable, namespaced, "watch workloads"},
	clusterv1.Cluster_Why_FullMethodName:            {local, access.Read, gateways, repeatable, namespaced, "why"},
	clusterv1.Cluster_ApplyWorkloads_FullMethodName: {leader, access.Deploy, gateways, receipted, namespaced, "apply workloads"},
	// A plan needs the permission deploy, which viewers do not have: it shows whether a secret would change, so a
	// caller could guess a stored secret.
	clusterv1.Cluster_PlanWorkloads_FullMethodName:      {read, access.Deploy, gateways, repeatable, namespaced, "plan workloads"},
	clusterv1.Cluster_ApplyStream_FullMethodName:        {local, access.Deploy, gateways, idempotent, namespaced, "apply stream"},
	clusterv1.Cluster_CordonNode_FullMethodName:         {leader, access.Nodes, gateways, receipted, clusterWide, "cordon node"},
	clusterv1.Cluster_DrainNode_FullMethodName:          {leader, access.Nodes, gateways, receipted, clusterWide, "drain node"},
	clusterv1.Cluster_LabelNode_FullMethodName:          {leader, access.Nodes, gateways, receipted, clusterWide, "label node"},
	clusterv1.Cluster_TaintNode_FullMethodName:          {leader, access.Nodes, gateways, receipted, clusterWide, "taint node"},
	clusterv1.Cluster_PreviewRebalance_FullMethodName:   {read, access.Read, gateways, repeatable, clusterWide, "preview rebalance"},
	clusterv1.Cluster_GetRebalancePolicy_FullMethodName: {read, access.Read, gateways, repeatable, clusterWide, "get rebalance policy"},
	clusterv1.Cluster_SetRebalancePolicy_FullMethodName: {leader, access.Nodes, gateways, receipted, clusterWide, "set rebalance policy"},
	clusterv1.Cluster_ApplyRebalance_FullMethodName:     {leader, access.Nodes, gateways, receipted, clusterWide, "apply rebalance"},
	clusterv1.Cluster_RemoveNode_FullMethodName:         {leader, access.Fence, gateways, receipted, clusterWide, "remove node"},
	clusterv1.Cluster_FenceNode_FullMethodName:          {leader, access.Fence, gateways, receipted, clusterWide, "fence node"},
	clusterv1.Cluster_Logs_FullMethodName:               {local, access.Logs, gateways, repeatable, namespaced, "logs"},
	// A session needs the permission exec. The leader commits its audit events.
	clusterv1.Cluster_Exec_FullMethodName:              {local, access.Exec, gateways, once, namespaced, "exec"},
	clusterv1.Cluster_RecordSession_FullMethodName:     {leader, access.Never, schedulers, idempotent, clusterWide, "record session"},
	clusterv1.Cluster_ListActions_FullMethodName:       {local, access.Read, gateways, repeatable, namespaced, "list actions"},
	clusterv1.Cluster_ListUsage_FullMethodName:         {local, access.Read, gateways, repeatable, namespaced, "list usage"},
	clusterv1.Cluster_ListDrifts_FullMethodName:        {read, access.Read, gateways, repeatable, namespaced, "list drifts"},
	clusterv1.Cluster_AdoptDrift_FullMethodName:        {leader, access.Deploy, gateways, receipted, namespaced, "adopt drift"},
	clusterv1.Cluster_DeleteDrift_FullMethodName:       {leader, access.Deploy, gateways, receipted, namespaced, "delete drift"},
	clusterv1.Cluster_CollectGarbage_FullMethodName:    {leader, access.Nodes, gateways, idempotent, clusterWide, "collect garbage"},
	clusterv1.Cluster_ListVolumes_FullMethodName:       {read, access.Read, gateways, repeatable, namespaced, "list volumes"},
	clusterv1.Cluster_CreateVolume_FullMethodName:      {leader, access.Deploy, gateways, receipted, namespaced, "create volume"},
	clusterv1.Cluster_DeleteVolume_FullMethodName:      {leader, access.Volumes, gateways, receipted, namespaced, "delete volume"},
	clusterv1.Cluster_MoveVolume_FullMethodName:        {leader, access.Volumes, gateways, receipted, namespaced, "move volume"},
	clusterv1.Cluster_ListNamespaces_FullMethodName:    {read, access.Read, gateways, repeatable, namespaced, "list namespaces"},
	clusterv1.Cluster_PutNamespace_FullMethodName:      {leader, access.Namespaces, gateways, receipted, clusterWide, "put namespace"},
	clusterv1.Cluster_DeleteNamespace_FullMethodName:   {leader, access.Namespaces, gateways, receipted, clusterWide, "delete namespace"},
	clusterv1.Cluster_ListPolicies_FullMethodName:      {read, access.Read, gateways, repeatable, namespaced, "list policies"},
	clusterv1.Cluster_PutPolicy_FullMethodName:         {leader, access.Policies, gateways, receipted, clusterWide, "put policy"},
	clusterv1.Cluster_DeletePolicy_FullMethodName:      {leader, access.Policies, gateways, receipted, clusterWide, "delete policy"},
	clusterv1.Cluster_BindPolicy_FullMethodName:        {leader, access.Policies, gateways, receipted, clusterWide, "bind policy"},
	clusterv1.Cluster_ListNetworks_FullMethodName:      {read, access.Read, gateways, repeatable, namespaced, "list networks"},
	clusterv1.Cluster_GetNetwork_FullMethodName:        {read, access.Read, gateways, repeatable, namespaced, "get network"},
	clusterv1.Cluster_CheckNetwork_FullMethodName:      {local, access.Read, gateways, repeatable, namespaced, "check network"},
	clusterv1.Cluster_Trace_FullMethodName:             {local, access.Read, gateways, repeatable, namespaced, "trace a connection"},
	clusterv1.Cluster_CreateNetwork_FullMethodName:     {leader, access.Deploy, gateways, receipted, namespaced, "create network"},
	clusterv1.Cluster_DeleteNetwork_FullMethodName:     {leader, access.Deploy, gateways, receipted, namespaced, "delete network"},
	clusterv1.Cluster_ListScrapeTargets_FullMethodName: {read, access.Read, gateways, repeatable, namespaced, "list scrape targets"},
	clusterv1.Cluster_ListRoles_FullMethodName:         {read, access.Read, gateways, repeatable, general, "list roles"},
	clusterv1.Cluster_PutRole_FullMethodName:           {leader, access.Trust, gateways, receipted, clusterWide, "put role"},
	clusterv1.Cluster_DeleteRole_FullMethodName:        {leader, access.Trust, gateways, receipted, clusterWide, "delete role"},
	clusterv1.Cluster_ListBindings_FullMethodName:      {read, access.Trust, gateways, repeatable, clusterWide, "list bindings"},
	clusterv1.Cluster_BindRole_FullMethodName:          {leader, access.Trust, gateways, receipted, clusterWide, "bind role"},
	clusterv1.Cluster_ListAccounts_FullMethodName:      {read, access.Trust, gateways, repeatable, clusterWide, "list accounts"},
	clusterv1.Cluster_CreateAccount_FullMethodName:     {leader, access.Trust, gateways, receipted, clusterWide, "create account"},
	clusterv1.Cluster_RotateAccount_FullMethodName:     {leader, access.Trust, gateways, receipted, clusterWide, "rotate account"},
	clusterv1.Cluster_DeleteAccount_FullMethodName:     {leader, access.Trust, gateways, receipted, clusterWide, "delete account"},
	clusterv1.Cluster_LinkConsole_FullMethodName:       {leader, access.Always, nobody, receipted, general, "link console"},
	clusterv1.Cluster_OpenConsole_FullMethodName:       {leader, access.Never, gateways, receipted, general, "open console"},
	clusterv1.Cluster_ListConsoles_FullMethodName:      {read, access.Always, gateways, repeatable, general, "list consoles"},
	clusterv1.Cluster_EndConsole_FullMethodName:        {leader, access.Always, gateways, receipted, general, "end console"},
	clusterv1.Cluster_ListObjects_FullMethodName:       {read, access.Read, gateways, repeatable, namespaced, "list objects"},
	clusterv1.Cluster_PutObject_FullMethodName:         {leader, access.Deploy, gateways, receipted, namespaced, "put object"},
	clusterv1.Cluster_RollBackObject_FullMethodName:    {leader, access.Deploy, gateways, receipted, namespaced, "roll back object"},
	clusterv1.Cluster_DeleteObject_FullMethodName:      {leader, access.Deploy, gateways, receipted, namespaced, "delete object"},
	// Each repetition of this call is recorded in the audit log.
	clusterv1.Cluster_ShowSecret_FullMethodName:         {leader, access.Secrets, nobody, idempotent, namespaced, "show secret"},
	clusterv1.Cluster_GetConfig_FullMethodName:          {read, access.Read, gateways, repeatable, namespaced, "get config"},
	clusterv1.Cluster_GetAccess_FullMethodName:          {read, access.Always, gateways, repeatable, general, "get access"},
	clusterv1.Cluster_CheckAccess_FullMethodName:        {read, access.Always, gateways, repeatable, general, "check access"},
	clusterv1.Cluster_SetMode_FullMethodName:            {leader, access.Cluster, gateways, receipted, clusterWide, "set mode"},
	clusterv1.Cluster_TransferLeadership_FullMethodName: {leader, access.Cluster, gateways | schedulers, once, clusterWide, "transfer leadership"},
	clusterv1.Cluster_RemoveReplica_FullMethodName:      {leader, access.Cluster, gateways, once, clusterWide, "remove replica"},
	// A backup contains the whole state. The handler of RestoreBackup forwards its stream to the leader
	// itself.
	clusterv1.Cluster_CreateBackup_FullMethodName:  {local, access.Backups, nobody, repeatable, clusterWide, "create backup"},
	clusterv1.Cluster_RestoreBackup_FullMethodName: {local, access.Backups, nobody, once, clusterWide, "restore backup"},
	clusterv1.Cluster_ClusterKey_FullMethodName:    {local, access.Never, schedulers, repeatable, clusterWide, "cluster key"},
	clusterv1.Cluster_Recovery_FullMethodName:      {leader, access.Read, gateways, repeatable, clusterWide, "recovery"},
	clusterv1.Cluster_RestoreMirror_FullMethodName: {leader, access.Cluster, gateways, once, clusterWide, "restore mirror"},
	clusterv1.Cluster_ImportMirror_FullMethodName:  {leader, access.Cluster, gateways, once, clusterWide, "import mirror"},
	clusterv1.Cluster_AttachMirror_FullMethodName:  {leader, access.Cluster, gateways, receipted, clusterWide, "attach mirror"},
	clusterv1.Cluster_DetachMirror_FullMethodName:  {leader, access.Cluster, gateways, receipted, clusterWide, "detach mirror"},
	clusterv1.Cluster_MirrorStatus_FullMethodName:  {leader, access.Read, gateways, repeatable, clusterWide, "mirror status"},
	clusterv1.Cluster_ProbeMirror_FullMethodName:   {local, access.Never, schedulers, repeatable, clusterWide, "probe mirror"},

	clusterv1.Cluster_GetReadIndex_FullMethodName: {leader, access.Never, schedulers, repeatable, clusterWide, "read index"},

	// Enrol exchanges a join token for a certificate. Every other call needs a certificate.
	clusterv1.Trust_Enrol_FullMethodName:            {leader, access.Any, machines | strangers, idempotent, general, "enrol"},
	clusterv1.Trust_Renew_FullMethodName:            {leader, access.Always, machines, idempotent, general, "renew certificate"},
	clusterv1.Trust_Bundle_FullMethodName:           {local, access.Any, machines, repeatable, general, "trust bundle"},
	clusterv1.Trust_CreateToken_FullMethodName:      {leader, access.Trust, nobody, receipted, clusterWide, "create token"},
	clusterv1.Trust_ListTokens_FullMethodName:       {leader, access.Trust, nobody, repeatable, clusterWide, "list tokens"},
	clusterv1.Trust_DeleteToken_FullMethodName:      {leader, access.Trust, nobody, receipted, clusterWide, "delete token"},
	clusterv1.Trust_ListIdentities_FullMethodName:   {leader, access.Trust, nobody, repeatable, clusterWide, "list identities"},
	clusterv1.Trust_Revoke_FullMethodName:           {leader, access.Trust, nobody, receipted, clusterWide, "revoke"},
	clusterv1.Trust_ListAuthorities_FullMethodName:  {leader, access.Read, gateways, repeatable, general, "list authorities"},
	clusterv1.Trust_PutAuthority_FullMethodName:     {leader, access.Trust, nobody, receipted, clusterWide, "put authority"},
	clusterv1.Trust_DropAuthority_FullMethodName:    {leader, access.Trust, nobody, receipted, clusterWide, "drop authority"},
	clusterv1.Trust_RotateClusterKey_FullMethodName: {leader, access.Trust, nobody, receipted, clusterWide, "rotate cluster key"},
	clusterv1.Trust_ClusterKeyStatus_FullMethodName: {leader, access.Trust, nobody, repeatable, clusterWide, "cluster key status"},
	clusterv1.Trust_RotateGossip_FullMethodName:     {leader, access.Trust, nobody, receipted, clusterWide, "rotate gossip key"},

	"/grpc.health.v1.Health/Check":                                   {local, access.Any, machines, repeatable, general, "health"},
	"/grpc.health.v1.Health/List":                                    {local, access.Any, machines, repeatable, general, "health"},
	"/grpc.health.v1.Health/Watch":                                   {local, access.Any, machines, repeatable, general, "health"},
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      {local, access.Any, machines, repeatable, general, "reflection"},
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": {local, access.Any, machines, repeatable, general, "reflection"},
}
