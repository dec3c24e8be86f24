package persysctl

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
)

func (f *fake) ListRoles(_ context.Context, req *clusterv1.ListRolesRequest) (*clusterv1.ListRolesResponse, error) {
	out := &clusterv1.ListRolesResponse{Index: 7}
	for _, r := range []*clusterv1.Role{
		{Name: "viewer", Builtin: true, Permissions: []string{"read", "logs"}},
		{Name: "deployer", Description: "CI of the shop", Permissions: []string{"deploy", "logs", "read"}, Version: 21},
	} {
		if req.GetName() == "" || req.GetName() == r.GetName() {
			out.Roles = append(out.Roles, r)
		}
	}
	return out, nil
}

func (f *fake) PutRole(_ context.Context, req *clusterv1.PutRoleRequest) (*clusterv1.RoleResponse, error) {
	if req.GetName() == "viewer" {
		return nil, status.Error(codes.InvalidArgument, `name: "viewer" is a built-in role, which cannot be changed: take another name`)
	}
	return &clusterv1.RoleResponse{Index: 8}, nil
}

func (f *fake) DeleteRole(context.Context, *clusterv1.DeleteRoleRequest) (*clusterv1.RoleResponse, error) {
	return nil, status.Error(codes.FailedPrecondition, `role "deployer" has 2 bindings, one of them to account "ci": persysctl role unbind first`)
}

func (f *fake) ListBindings(context.Context, *clusterv1.ListBindingsRequest) (*clusterv1.ListBindingsResponse, error) {
	return &clusterv1.ListBindingsResponse{Index: 7, Bindings: []*clusterv1.Binding{
		{Role: "deployer", Kind: "account", Name: "ci", Namespaces: []string{"bank", "shop"}, By: "persys://c1/user/admin"},
		{Role: "viewer", Kind: "group", Name: "developers", Everywhere: true, By: "oidc:https://id.example#ada"},
	}}, nil
}

func (f *fake) BindRole(_ context.Context, req *clusterv1.BindRoleRequest) (*clusterv1.RoleResponse, error) {
	if req.GetRole() == "admin" {
		return nil, status.Error(codes.PermissionDenied, `user "ada" may not bind role admin to user eve: it gives trust in every namespace, which the caller does not have there`)
	}
	return &clusterv1.RoleResponse{Index: 9}, nil
}

func (f *fake) ListAccounts(context.Context, *clusterv1.ListAccountsRequest) (*clusterv1.ListAccountsResponse, error) {
	return &clusterv1.ListAccountsResponse{Index: 7, Accounts: []*clusterv1.Account{
		{Name: "builds", Issuer: "https://ci.example", Audience: "persys", Claims: map[string]string{"repository": "shop/web", "ref": "main"}, CreatedBy: "persys://c1/user/admin"},
		{Name: "ci", Description: "nightly", ExpiresAt: timestamppb.New(epoch.Add(3 * time.Hour)), CreatedBy: "persys://c1/user/admin"},
		{Name: "old", ExpiresAt: timestamppb.New(epoch.Add(-3 * time.Hour)), CreatedBy: "persys://c1/user/admin"},
	}}, nil
}

func (f *fake) CreateAccount(_ context.Context, req *clusterv1.CreateAccountRequest) (*clusterv1.AccountTokenResponse, error) {
	out := &clusterv1.AccountTokenResponse{Index: 9, Account: &clusterv1.Account{Name: req.GetName(), Issuer: req.GetIssuer()}}
	if req.GetIssuer() == "" {
		out.Token, out.Account.ExpiresAt = "persys~"+req.GetName()+"~secret", timestamppb.New(epoch.Add(time.Duration(req.GetTtlSeconds())*time.Second))
	}
	return out, nil
}

// consoleSession is a session at the web console.
func consoleSession(id, user, from string, opened bool) *clusterv1.ConsoleSession {
	s := &clusterv1.ConsoleSession{
		Id: id, User: user, From: from, CreatedAt: timestamppb.New(epoch.Add(-time.Hour)),
		CodeExpiresAt: timestamppb.New(epoch.Add(5 * time.Minute)), ExpiresAt: timestamppb.New(epoch.Add(11 * time.Hour)),
	}
	if opened {
		s.OpenedAt = s.GetCreatedAt()
	}
	return s
}

func (f *fake) LinkConsole(_ context.Context, req *clusterv1.LinkConsoleRequest) (*clusterv1.LinkConsoleResponse, error) {
	if req.GetTtlSeconds() != 8*3600 {
		return nil, status.Error(codes.InvalidArgument, "ttl_seconds")
	}
	return &clusterv1.LinkConsoleResponse{Session: consoleSession("5f0c2d7e91a4b833", "ada", "", false), Code: "persys-console~5f0c2d7e91a4b833~c2VjcmV0", Index: 9}, nil
}

func (f *fake) ListConsoles(context.Context, *clusterv1.ListConsolesRequest) (*clusterv1.ListConsolesResponse, error) {
	return &clusterv1.ListConsolesResponse{Index: 7, Sessions: []*clusterv1.ConsoleSession{
		consoleSession("5f0c2d7e91a4b833", "ada", "10.0.0.7", true), consoleSession("77c0aa1f00d2e914", "bob", "", false),
	}}, nil
}

func (f *fake) EndConsole(context.Context, *clusterv1.EndConsoleRequest) (*clusterv1.EndConsoleResponse, error) {
	return &clusterv1.EndConsoleResponse{Index: 10}, nil
}
