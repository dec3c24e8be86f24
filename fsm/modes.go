package fsm

import (
	"fmt"
	"strings"

	commandv1 "github.com/persys/compute/api/command/v1"
)

// Permission says whether a mode of the control plane permits a command.
type Permission uint8

// The permissions.
const (
	Refused    Permission = iota
	Allowed               // permitted without a condition
	KnownNodes            // permitted only if the command is about a registered node
)

func (p Permission) String() string {
	switch p {
	case Allowed:
		return "allow"
	case KnownNodes:
		return "known nodes"
	}
	return "refuse"
}

// arm is the protobuf field name of a command in the oneof of Command, for example
// put_workloads.
type arm string

// armRule holds the fixed properties of one command.
type armRule struct {
	name    arm
	number  uint32 // protobuf field number of the command; part of the digest
	level   uint32 // lowest feature level of the cluster at which the command is accepted
	planned bool   // the planner proposes the command, and the command carries the leader's epoch
	frozen  Permission
}

// armRules lists every command and what the frozen modes (degraded and recovery) permit. Mode normal permits
// every command. Rows are only added, never removed.
var armRules = [...]armRule{
	{"init_cluster", 10, 0, false, Allowed},
	{"put_workloads", 11, 1, false, Refused},
	{"set_desired", 12, 1, false, Refused},
	{"delete_workload", 13, 1, false, Refused},
	{"retry_workload", 14, 1, false, Refused},
	{"register_node", 20, 1, false, KnownNodes},
	{"cordon_node", 21, 1, false, Refused},
	{"drain_node", 22, 1, false, Refused},
	{"remove_node", 23, 1, false, Refused},
	{"fence_node", 24, 1, false, Refused},
	{"set_node_states", 25, 1, true, Allowed},
	{"assign", 30, 1, true, Refused},
	{"evict", 31, 1, true, Refused},
	{"schedule_retries", 32, 1, true, Refused},
	{"explain_unplaced", 33, 1, true, Allowed},
	{"report", 34, 1, true, Allowed},
	{"set_mode", 40, 1, false, Allowed},
	{"put_replica", 41, 1, false, Allowed},
	{"remove_replica", 42, 1, false, Allowed},
	{"set_feature_level", 43, 1, false, Allowed},
	{"barrier", 44, 0, false, Allowed},
	{"mirror_attached", 45, 1, false, Allowed},
	{"pin_cluster_key", 50, 1, false, Allowed},
	{"put_authority", 51, 1, false, Allowed},
	{"drop_authority", 52, 1, false, Allowed},
	{"put_token", 53, 1, false, Allowed},
	{"drop_token", 54, 1, false, Allowed},
	{"admit", 55, 1, false, Allowed},
	{"revoke", 56, 1, false, Allowed},
	{"audit", 57, 1, false, Allowed},
	{"forgive_failures", 60, 1, true, Refused},
	{"record_actions", 61, 1, true, Refused},
	{"set_drifts", 62, 1, true, Refused},
	{"adopt_drift", 63, 1, false, Refused},
	{"drop_orphan", 64, 1, false, Refused},

	{"set_gossip_ring", 90, 1, false, Allowed},

	{"put_namespace", 110, 1, false, Refused},
	{"delete_namespace", 111, 1, false, Refused},

	{"advance_rollout", 150, 1, true, Refused},
	{"set_rollout", 151, 1, false, Refused},

	{"put_policy", 220, 1, false, Refused},
	{"delete_policy", 221, 1, false, Refused},
	{"bind_policy", 222, 1, false, Refused},
	{"attach_mirror", 250, 1, false, Allowed},
	{"detach_mirror", 251, 1, false, Allowed},

	{"put_role", 280, 1, false, Allowed},
	{"delete_role", 281, 1, false, Allowed},
	{"bind_role", 282, 1, false, Allowed},
	{"put_account", 283, 1, false, Allowed},
	{"delete_account", 284, 1, false, Allowed},

	{"label_node", 290, 1, false, Refused},
	{"taint_node", 291, 1, false, Refused},

	{"finish_jobs", 320, 1, true, Refused},
	{"expire_jobs", 321, 1, true, Refused},
	{"create_runs", 322, 1, true, Refused},
	{"start_run", 323, 1, false, Refused},

	{"scale_group", 357, 1, false, Refused},
	{"move_workloads", 372, 1, false, Refused},
	{"set_rebalance_policy", 373, 1, false, Refused},
	{"place_members", 330, 1, true, Refused},

	{"put_network", 420, 1, false, Refused},
	{"delete_network", 421, 1, false, Refused},
	{"release_slices", 422, 1, true, Refused},
	{"put_object", 400, 1, false, Refused},
	{"delete_object", 401, 1, false, Refused},

	{"put_volume", 452, 1, false, Refused},
	{"delete_volume", 453, 1, false, Refused},
	{"report_volumes", 454, 1, true, Allowed},
	{"link_console", 510, 1, false, Allowed},
	{"open_console", 511, 1, false, Allowed},
	{"end_console", 512, 1, false, Allowed},
	{"rotate_cluster_key", 540, 1, false, Allowed},
	{"reseal", 541, 1, false, Allowed},
	{"move_volume", 590, 1, false, Refused},
	{"advance_moves", 591, 1, true, Refused},
}

// FeatureLevel is the highest feature level that this version understands. A command whose level is above the
// level of the cluster is refused, because a replica stops when it meets a command that it does not know. The
// leader raises the cluster's level once every replica has announced the new one. A change of what an existing
// command does needs a new level too: replicas that differ in it would diverge.
const FeatureLevel = 1

func (a arm) rule() armRule { return ruleOf(armRules[:], a) }

// ruleOf finds the rule of a command in a table of rules.
func ruleOf(rules []armRule, a arm) armRule {
	for i := range rules {
		if rules[i].name == a {
			return rules[i]
		}
	}
	// An unknown command is always refused: no cluster reaches this level, and no frozen mode permits the command.
	return armRule{name: a, level: FeatureLevel + 1, frozen: Refused}
}

func (a arm) planned() bool { return a.rule().planned }

// armOf returns the protobuf field name of the command in c, such as put_workloads; "" if c has no
// body.
func armOf(c Command) arm {
	switch c.GetBody().(type) {
	case *commandv1.Command_InitCluster:
		return "init_cluster"
	case *commandv1.Command_PutWorkloads:
		return "put_workloads"
	case *commandv1.Command_SetDesired:
		return "set_desired"
	case *commandv1.Command_DeleteWorkload:
		return "delete_workload"
	case *commandv1.Command_RetryWorkload:
		return "retry_workload"
	case *commandv1.Command_RegisterNode:
		return "register_node"
	case *commandv1.Command_CordonNode:
		return "cordon_node"
	case *commandv1.Command_DrainNode:
		return "drain_node"
	case *commandv1.Command_RemoveNode:
		return "remove_node"
	case *commandv1.Command_FenceNode:
		return "fence_node"
	case *commandv1.Command_SetNodeStates:
		return "set_node_states"
	case *commandv1.Command_Assign:
		return "assign"
	case *commandv1.Command_Evict:
		return "evict"
	case *commandv1.Command_ScheduleRetries:
		return "schedule_retries"
	case *commandv1.Command_ExplainUnplaced:
		return "explain_unplaced"
	case *commandv1.Command_Report:
		return "report"
	case *commandv1.Command_SetMode:
		return "set_mode"
	case *commandv1.Command_PutReplica:
		return "put_replica"
	case *commandv1.Command_RemoveReplica:
		return "remove_replica"
	case *commandv1.Command_SetFeatureLevel:
		return "set_feature_level"
	case *commandv1.Command_Barrier:
		return "barrier"
	case *commandv1.Command_MirrorAttached:
		return "mirror_attached"
	case *commandv1.Command_PinClusterKey:
		return "pin_cluster_key"
	case *commandv1.Command_PutAuthority:
		return "put_authority"
	case *commandv1.Command_DropAuthority:
		return "drop_authority"
	case *commandv1.Command_PutToken:
		return "put_token"
	case *commandv1.Command_DropToken:
		return "drop_token"
	case *commandv1.Command_Admit:
		return "admit"
	case *commandv1.Command_Revoke:
		return "revoke"
	case *commandv1.Command_Audit:
		return "audit"
	case *commandv1.Command_ForgiveFailures:
		return "forgive_failures"
	case *commandv1.Command_RecordActions:
		return "record_actions"
	case *commandv1.Command_SetDrifts:
		return "set_drifts"
	case *commandv1.Command_AdoptDrift:
		return "adopt_drift"
	case *commandv1.Command_DropOrphan:
		return "drop_orphan"
	case *commandv1.Command_SetGossipRing:
		return "set_gossip_ring"
	case *commandv1.Command_RotateClusterKey:
		return "rotate_cluster_key"
	case *commandv1.Command_Reseal:
		return "reseal"
	case *commandv1.Command_PutNamespace:
		return "put_namespace"
	case *commandv1.Command_DeleteNamespace:
		return "delete_namespace"
	case *commandv1.Command_AdvanceRollout:
		return "advance_rollout"
	case *commandv1.Command_SetRollout:
		return "set_rollout"
	case *commandv1.Command_PutPolicy:
		return "put_policy"
	case *commandv1.Command_DeletePolicy:
		return "delete_policy"
	case *commandv1.Command_BindPolicy:
		return "bind_policy"
	case *commandv1.Command_AttachMirror:
		return "attach_mirror"
	case *commandv1.Command_DetachMirror:
		return "detach_mirror"
	case *commandv1.Command_PutRole:
		return "put_role"
	case *commandv1.Command_DeleteRole:
		return "delete_role"
	case *commandv1.Command_BindRole:
		return "bind_role"
	case *commandv1.Command_PutAccount:
		return "put_account"
	case *commandv1.Command_DeleteAccount:
		return "delete_account"
	case *commandv1.Command_LinkConsole:
		return "link_console"
	case *commandv1.Command_OpenConsole:
		return "open_console"
	case *commandv1.Command_EndConsole:
		return "end_console"
	case *commandv1.Command_LabelNode:
		return "label_node"
	case *commandv1.Command_TaintNode:
		return "taint_node"
	case *commandv1.Command_FinishJobs:
		return "finish_jobs"
	case *commandv1.Command_ExpireJobs:
		return "expire_jobs"
	case *commandv1.Command_CreateRuns:
		return "create_runs"
	case *commandv1.Command_StartRun:
		return "start_run"
	case *commandv1.Command_ScaleGroup:
		return "scale_group"
	case *commandv1.Command_MoveWorkloads:
		return "move_workloads"
	case *commandv1.Command_SetRebalancePolicy:
		return "set_rebalance_policy"
	case *commandv1.Command_PlaceMembers:
		return "place_members"
	case *commandv1.Command_PutVolume:
		return "put_volume"
	case *commandv1.Command_DeleteVolume:
		return "delete_volume"
	case *commandv1.Command_ReportVolumes:
		return "report_volumes"
	case *commandv1.Command_MoveVolume:
		return "move_volume"
	case *commandv1.Command_AdvanceMoves:
		return "advance_moves"
	case *commandv1.Command_PutNetwork:
		return "put_network"
	case *commandv1.Command_DeleteNetwork:
		return "delete_network"
	case *commandv1.Command_ReleaseSlices:
		return "release_slices"
	case *commandv1.Command_PutObject:
		return "put_object"
	case *commandv1.Command_DeleteObject:
		return "delete_object"
	}
	return ""
}

// ArmName returns the protobuf name of the command, for example put_workloads, for logs and
// metrics. It is "" if c has no body.
func ArmName(c Command) string { return string(armOf(c)) }

// PermissionOf returns whether a mode permits a command. An unknown command or mode is Refused.
func PermissionOf(m Mode, command string) Permission {
	rule := arm(command).rule()
	switch {
	case rule.number == 0:
		return Refused
	case m == ModeNormal:
		return Allowed
	case m == ModeDegraded || m == ModeRecovery:
		return rule.frozen
	}
	return Refused
}

// Permit checks a command against a mode before it is proposed. It does not read the state, so it
// accepts every registration; Apply refuses registrations of unknown nodes. The error is a *Refusal
// of Kind Frozen.
func Permit(m Mode, c Command) error {
	if PermissionOf(m, string(armOf(c))) != Refused {
		return nil
	}
	return &Refusal{Kind: Frozen, Reason: fmt.Sprintf("the control plane is in mode %s and refuses %s", m, armOf(c))}
}

// Matrix returns the table of commands and modes as text, one command per line: its name and its permission
// in normal, degraded and recovery, separated by tabs.
func Matrix() string {
	modes := [...]Mode{ModeNormal, ModeDegraded, ModeRecovery}
	var b strings.Builder
	b.WriteString("command")
	for _, m := range modes {
		b.WriteString("\t" + string(m))
	}
	b.WriteByte('\n')
	for _, r := range armRules {
		b.WriteString(string(r.name))
		for _, m := range modes {
			b.WriteString("\t" + PermissionOf(m, string(r.name)).String())
		}
		b.WriteByte('\n')
	}
	return b.String()
}
