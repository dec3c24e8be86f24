package fsm

// Statuses lists all workload statuses.
func Statuses() []Status {
	return []Status{
		StatusPending, StatusScheduled, StatusUpdating, StatusRunning, StatusStopped, StatusFailed, StatusUnknown,
		StatusRetryPending, StatusDeleting, StatusDeleted,
	}
}

// NodeStatuses lists all node statuses.
func NodeStatuses() []NodeStatus { return []NodeStatus{NodeReady, NodeNotReady, NodeDraining} }

// EventTypes lists the types of events, in the order of their constants.
func EventTypes() []string {
	return []string{
		EventWorkloadScheduled, EventWorkloadFailed, EventRetryTriggered, EventRescheduled, EventNodeLost,
		EventDriftDetected, EventWorkloadCreated, EventWorkloadUpdated, EventWorkloadState, EventWorkloadDeleting,
		EventWorkloadDeleted, EventWorkloadUnplaced, EventWorkloadEvicted, EventPreemption, EventDataDiscarded,
		EventWorkloadStable, EventAgentAction, EventDriftResolved, EventNodeRegistered, EventNodeReady,
		EventNodeCordoned, EventNodeUncordoned, EventNodeDraining, EventNodeDrainEnded, EventNodeLabelsChanged, EventNodeTaintsChanged, EventNodeFenced,
		EventNodeRemoved, EventModeChanged, EventReplicaJoined, EventReplicaRemoved, EventReplicaDamaged,
		EventReplicaRepaired, EventReplicaCopied, EventClusterFormed, EventFeatureLevelRaise, EventRebalancePolicy, EventMirrorAttached,
		EventMirrorDetached, EventClusterRestored, EventClusterRecovered, EventClusterKeyPinned, EventClusterKeyRotation, EventGossipRing,
		EventAuthorityAdded, EventAuthorityDropped, EventTokenCreated, EventTokenDeleted, EventJoined,
		EventJoinRefused, EventCertificateRenewed, EventRevoked, EventCallRefused, EventCallMade, EventSessionOpened,
		EventSessionClosed, EventNamespaceCreated, EventNamespaceChanged, EventNamespaceDeleted, EventRolloutStarted,
		EventRolloutSuperseded, EventRolloutAwaits, EventRolloutPromoted, EventRolloutPaused, EventRolloutResumed, EventRolloutReverting,
		EventRolloutCompleted, EventPolicyCreated, EventPolicyChanged, EventPolicyDeleted, EventPolicyBound,
		EventPolicyUnbound, EventRoleCreated, EventRoleChanged, EventRoleDeleted, EventRoleBound, EventRoleUnbound,
		EventAccountCreated, EventAccountRotated, EventAccountDeleted, EventConsoleLinked, EventConsoleOpened, EventConsoleEnded, EventMirrorRestored, EventCoreDNSLost, EventCoreDNSBack,
		EventJobSucceeded, EventJobFailed, EventCronFired, EventCronMissed, EventCronSkipped, EventRunStarted, EventGroupScaled, EventMemberCreated, EventMemberRemoved, EventNetworkCreated, EventNetworkDeleted, EventPortsHeld,
		EventSecretChanged, EventSecretDeleted, EventSecretShown, EventConfigChanged, EventConfigDeleted,
		EventVolumeCreated, EventVolumeKept, EventVolumeDeleted, EventVolumeMove, EventMutation,
	}
}
