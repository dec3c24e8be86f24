package persysctl

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
)

// trustFake is the Trust service of the fake scheduler.
type trustFake struct {
	clusterv1.UnimplementedTrustServer
	f *fake
}

func (t trustFake) CreateToken(_ context.Context, req *clusterv1.CreateTokenRequest) (*clusterv1.CreateTokenResponse, error) {
	return &clusterv1.CreateTokenResponse{Token: "persys-join-1.abc.0123", Info: &clusterv1.TokenInfo{
		Id: "00aa", Role: req.GetRole(), UsesLeft: req.GetUses(), ExpiresAt: before(-time.Duration(req.GetTtlSeconds()) * time.Second),
	}}, nil
}

func (t trustFake) ListTokens(context.Context, *clusterv1.ListTokensRequest) (*clusterv1.ListTokensResponse, error) {
	by := "persys://home/user/ada?cn=persysctl"
	return &clusterv1.ListTokensResponse{Tokens: []*clusterv1.TokenInfo{
		{Id: "0011223344556677", Role: "agent", UsesLeft: 9, ExpiresAt: before(-time.Hour), CreatedBy: by},
		{Id: "8899aabbccddeeff", Role: "user", Name: "vic", Access: "viewer", UsesLeft: 0, ExpiresAt: before(-time.Minute), CreatedBy: by},
		{Id: "ffeeddccbbaa9988", Role: "scheduler", Name: "s4", UsesLeft: 1, ExpiresAt: before(time.Minute), CreatedBy: by},
	}}, nil
}

func (t trustFake) DeleteToken(context.Context, *clusterv1.DeleteTokenRequest) (*clusterv1.DeleteTokenResponse, error) {
	return &clusterv1.DeleteTokenResponse{}, nil
}

func (t trustFake) ListIdentities(context.Context, *clusterv1.ListIdentitiesRequest) (*clusterv1.ListIdentitiesResponse, error) {
	f := strings.Repeat("ab", 32)
	return &clusterv1.ListIdentitiesResponse{Identities: []*clusterv1.IdentityInfo{
		{Role: "agent", Name: "node-a", IssuedAt: before(time.Hour), NotAfter: before(-48 * time.Hour), Fingerprint: f},
		{Role: "agent", Name: "node-b", IssuedAt: before(time.Hour), NotAfter: before(-48 * time.Hour), Fingerprint: f, Revoked: true},
		{Role: "user", Name: "vic", Access: "viewer", IssuedAt: before(200 * 24 * time.Hour), NotAfter: before(time.Hour), Fingerprint: f},
	}}, nil
}

func (t trustFake) Revoke(context.Context, *clusterv1.RevokeRequest) (*clusterv1.RevokeResponse, error) {
	return &clusterv1.RevokeResponse{}, nil
}

func (t trustFake) ListAuthorities(context.Context, *clusterv1.ListAuthoritiesRequest) (*clusterv1.ListAuthoritiesResponse, error) {
	end := timestamppb.New(epoch.Add(700 * 24 * time.Hour))
	return &clusterv1.ListAuthoritiesResponse{Authorities: []*clusterv1.AuthorityInfo{
		{Id: strings.Repeat("1a", 32), RootId: strings.Repeat("2b", 32), ActiveAt: before(time.Hour), NotAfter: end, Issues: true},
		{Id: strings.Repeat("3c", 32), RootId: strings.Repeat("4d", 32), ActiveAt: before(-time.Hour), NotAfter: end},
	}}, nil
}

func (t trustFake) RotateClusterKey(context.Context, *clusterv1.RotateClusterKeyRequest) (*clusterv1.RotateClusterKeyResponse, error) {
	return &clusterv1.RotateClusterKeyResponse{KeyId: "bbbbbbbbbbbbbbbb"}, nil
}

func (t trustFake) ClusterKeyStatus(context.Context, *clusterv1.ClusterKeyStatusRequest) (*clusterv1.ClusterKeyStatusResponse, error) {
	const former, present = "aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"
	return &clusterv1.ClusterKeyStatusResponse{
		KeyId: present, FormerKeyId: former, Step: "resealing", ChangedAt: before(time.Minute), Left: 3, Values: 40,
		WaitsFor: "scheduler s3 does not answer",
		Replicas: []*clusterv1.ClusterKeyReplica{
			{Name: "s1", SealsWith: present, HeldKeyIds: []string{former, present}},
			{Name: "s2", SealsWith: former, HeldKeyIds: []string{former, present}, WaitsFor: "does not seal with key " + present + ": key file /var/lib/persys/scheduler/cluster.key: read-only file system"},
			{Name: "s3", WaitsFor: "does not answer"},
		},
	}, nil
}

func TestTrustCommandsReportTheirOutcome(t *testing.T) {
	for _, tc := range []struct {
		name string
		code int
		args []string
	}{
		{"token-create", 0, []string{"token", "create", "--role", "agent", "--uses", "3", "--ttl", "2h"}},
		{"token-create-no-role", exitUsage, []string{"token", "create"}},
		{"token-create-bad-ttl", exitUsage, []string{"token", "create", "--role", "agent", "--ttl", "1ms"}},
		{"token-create-user", 0, []string{"token", "create", "--role", "user", "--name", "ada", "--access", "viewer"}},
		{"token-create-user-no-name", exitUsage, []string{"token", "create", "--role", "user", "--access", "viewer"}},
		{"token-create-user-no-access", exitUsage, []string{"token", "create", "--role", "user", "--name", "ada"}},
		{"token-list", 0, []string{"token", "list"}},
		{"token-delete", 0, []string{"token", "delete", "0011223344556677"}},
		{"identity-list", 0, []string{"identity", "list"}},
		{"identity-revoke", 0, []string{"identity", "revoke", "agent/node-a", "--reason", "stolen"}},
		{"identity-revoke-nobody", exitUsage, []string{"identity", "revoke"}},
		{"identity-revoke-half", exitUsage, []string{"identity", "revoke", "node-a"}},
		{"ca-list", 0, []string{"ca", "list"}},
		{"cluster-key-rotate", 0, []string{"cluster-key", "rotate"}},
		{"cluster-key-rotate-late", exitTimeout, []string{"cluster-key", "rotate", "--wait", "--timeout", "1ms"}},
		{"cluster-key-status", 0, []string{"cluster-key", "status"}},
		{"cluster-key-status-yaml", 0, []string{"cluster-key", "status", "-o", "yaml"}},
		{"audit", 0, []string{"audit"}},
		{"audit-by", 0, []string{"audit", "list", "--by", "user/vic"}},
		{"audit-verify", 0, []string{"audit", "verify"}},
		{"audit-forged", exitFailed, []string{"audit", "verify"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := start(t, nil)
			f.events = []*clusterv1.Event{
				{Seq: 1, At: before(time.Hour), Type: "WorkloadAssigned", WorkloadId: "web", NodeId: "node-a", By: "leader"},
				{Seq: 2, At: before(50 * time.Minute), Type: "WorkloadApplied", WorkloadId: "web", By: "persys://home/user/ada?cn=persysctl", Details: map[string]string{"from": "10.0.0.7"}},
				{Seq: 3, At: before(40 * time.Minute), Type: "ModeChanged", By: "persys://home/user/ada", Details: map[string]string{"from": "normal", "to": "degraded", "caller": "10.0.0.7"}},
				{Seq: 4, At: before(30 * time.Minute), Type: "CallRefused", By: "persys://home/user/vic", Message: `user "vic" may not delete workload`, Details: map[string]string{"from": "10.0.0.8", "call": "delete workload"}},
				{Seq: 5, At: before(20 * time.Minute), Type: "JoinRefused", By: "stranger", Reason: "denied", Message: "join token 00aa is used up", NodeId: "thief", Details: map[string]string{"from": "10.6.6.6"}},
				{Seq: 6, At: before(15 * time.Minute), Type: "SessionOpened", By: "persys://home/user/ada?cn=ada", WorkloadId: "web", NodeId: "node-a", Message: "sh -c date", Details: map[string]string{"from": "10.0.0.9", "call": "exec", "via": "persys://home/gateway/g"}},
				{Seq: 7, At: before(14 * time.Minute), Type: "SessionClosed", By: "oidc:https://idp.example.com/realms/x#ev%20e", WorkloadId: "web", NodeId: "node-a", Message: "exit code 0", Details: map[string]string{"from": "10.0.0.9", "call": "exec", "via": "persys://home/gateway/g", "seconds": "60"}},
				{Seq: 8, At: before(10 * time.Minute), Type: "ModeChanged", By: "leader", Details: map[string]string{"from": "degraded", "to": "normal"}},
			}
			if tc.name == "audit-forged" {
				f.forged = "persys://home/user/vic"
			}
			s := newSession(t)
			code := s.run(f, tc.args...)
			if code != tc.code {
				t.Errorf("the exit code is %d, want %d", code, tc.code)
			}
			golden(t, tc.name, f, s, code, tc.args...)
		})
	}
}

func TestJoinNeedsAHome(t *testing.T) {
	s := newSession(t)
	s.home = ""
	if code := s.run(nil, "join", "TOKEN"); code != exitUsage || !strings.Contains(s.stderr.String(), "set HOME") {
		t.Errorf("the command ended with exit code %d: %s", code, s.stderr.String())
	}
}
