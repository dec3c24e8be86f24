package persysctl

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
)

func (f *fake) GetAccess(context.Context, *clusterv1.GetAccessRequest) (*clusterv1.GetAccessResponse, error) {
	return &clusterv1.GetAccessResponse{
		Identity: "persys://home/user/ada?cn=persysctl", Via: "persys://home/gateway/g1", CertificateNotAfter: before(-20 * time.Hour),
		Grants: []*clusterv1.Grant{
			{Role: "viewer", Permissions: []string{"read", "logs"}, Everywhere: true},
			{Role: "operator", Permissions: []string{"read", "logs", "exec", "deploy", "nodes"}, Namespaces: []string{"shop", "site"}},
		},
	}, nil
}

func (f *fake) CheckAccess(_ context.Context, req *clusterv1.CheckAccessRequest) (*clusterv1.CheckAccessResponse, error) {
	switch req.GetVerb() {
	case "deploy":
		return &clusterv1.CheckAccessResponse{Allowed: req.GetNamespace() == "shop", Permission: "deploy", Reason: "you have the permission deploy only in shop, site"}, nil
	case "drain node":
		return &clusterv1.CheckAccessResponse{Permission: "nodes", Reason: `user "ada" acts only in shop, site and may not drain node, which concerns the whole cluster`}, nil
	}
	return nil, status.Errorf(codes.InvalidArgument, "check access: verb %q must be a permission (read, logs) or a call (drain node)", req.GetVerb())
}

func TestAuthCommandsShowRights(t *testing.T) {
	for name, x := range map[string]struct {
		args []string
		code int
		out  []string
		err  string
	}{
		"whoami as a table":             {[]string{"auth", "whoami"}, 0, []string{"user/ada", "gateway/g1", "valid for 20h", "viewer", "all", "shop,site", "read,logs,exec,deploy,nodes"}, ""},
		"whoami as JSONPath":            {[]string{"auth", "whoami", "-o", "jsonpath={.grants[1].namespaces[0]}"}, 0, []string{"shop\n"}, ""},
		"yes":                           {[]string{"auth", "can-i", "deploy", "-n", "shop"}, 0, []string{"yes: "}, ""},
		"the answer no":                 {[]string{"auth", "can-i", "deploy", "-n", "bank"}, exitFailed, []string{"no: you have the permission deploy only in shop, site\n"}, ""},
		"the answer no as an exit code": {[]string{"auth", "can-i", "deploy", "-o", "json"}, exitFailed, []string{`"permission": "deploy"`}, ""},
		"a call of two words":           {[]string{"auth", "can-i", "drain", "node"}, exitFailed, []string{"no: ", "whole cluster"}, ""},
		"an unknown verb is no answer":  {[]string{"auth", "can-i", "fly"}, exitUsage, nil, `verb "fly" must be a permission`},
		"can-i without a verb":          {[]string{"auth", "can-i"}, exitUsage, nil, "VERB"},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := start(t, nil), newSession(t)
			if code := s.run(f, x.args...); code != x.code {
				t.Errorf("the exit code is %d, want %d", code, x.code)
			}
			for _, want := range x.out {
				if !strings.Contains(s.stdout.String(), want) {
					t.Errorf("the output does not contain %q: %q", want, s.stdout.String())
				}
			}
			if got := s.stderr.String(); x.err == "" && got != "" || !strings.Contains(got, x.err) {
				t.Errorf("stderr is %q, want %q", got, x.err)
			}
		})
	}
}
