package rpc

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	clusterv1 "github.com/persys/compute/api/cluster/v1"
	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/pki"
	"github.com/persys/compute/rpc/dial"
)

// TestNobodyGrantsMoreThanTheyHave: a person with the permission trust can grant others only permissions that the
// person has in the same namespaces. Through a gateway nobody can grant the permissions trust and backups.
func TestNobodyGrantsMoreThanTheyHave(t *testing.T) {
	_, as := spaces(t)
	admin := clusterv1.NewClusterClient(as(0, "user/admin"))
	put := func(ctx context.Context, c clusterv1.ClusterClient, name string, permissions ...string) error {
		return second(c.PutRole(ctx, &clusterv1.PutRoleRequest{Name: name, Permissions: permissions}))
	}
	bind := func(ctx context.Context, c clusterv1.ClusterClient, role, kind, name string, in ...string) error {
		return second(c.BindRole(ctx, &clusterv1.BindRoleRequest{Role: role, Kind: kind, Name: name, Namespaces: in, Everywhere: len(in) == 0}))
	}
	ok(t, put(ctxFor(t), admin, "keys", "trust", "namespaces"))
	ok(t, put(ctxFor(t), admin, "wide", "exec", "volumes"))
	ok(t, bind(ctxFor(t), admin, "keys", "user", "bob"))
	code(t, put(ctxFor(t), admin, "odd", "fly"), codes.InvalidArgument)
	for i, where := range []string{"leader", "follower"} {
		for through, ctxAs := range map[string]struct {
			cert string
			md   []string
		}{"directly": {"user/bob", nil}, "through a gateway": {"gateway/g", []string{dial.KeyOnBehalf, "persys://c1/user/bob"}}} {
			c := clusterv1.NewClusterClient(as(i, ctxAs.cert)) // bob is an operator in namespace b, and has the role keys
			ctx := func() context.Context { return with(t, ctxAs.md...) }
			at := where + ", " + through
			refused := func(what string, err error, words ...string) {
				t.Helper()
				code(t, err, codes.PermissionDenied)
				for _, word := range words {
					if err == nil || !strings.Contains(err.Error(), word) {
						t.Errorf("%s at the %s returned %v, want an error that contains %q", what, at, err, word)
					}
				}
			}
			refused("a role with permissions that user bob lacks", put(ctx(), c, "more", "trust", "fence", "deploy"), "deploy, fence", "auth whoami")
			refused("a change that adds to a role a permission that user bob lacks", put(ctx(), c, "wide", "exec", "volumes", "backups"), "backups")
			refused("admin", bind(ctx(), c, "admin", "user", "eve"), "deploy")
			refused("a binding of a role with a permission that user bob lacks", bind(ctx(), c, "wide", "group", "team", "b"), "volumes")
			refused("another namespace", bind(ctx(), c, "operator", "user", "eve", "a", "b"), "a, b")
			refused("an account", second(c.CreateAccount(ctx(), &clusterv1.CreateAccountRequest{Name: "ci", Role: "operator", Namespaces: []string{"a"}})), "a")
			refused("a change of the users of a namespace without the permission trust", second(clusterv1.NewClusterClient(as(i, "user/ada")).PutNamespace(ctxFor(t), &clusterv1.PutNamespaceRequest{Name: "a"})))
			ok(t, bind(ctx(), c, "operator", "user", "eve"+fmt.Sprint(i), "b"))
			_, err := c.BindRole(ctx(), &clusterv1.BindRoleRequest{Role: "operator", Kind: "user", Name: "eve" + fmt.Sprint(i), Remove: true})
			ok(t, err)
		}
		g := clusterv1.NewClusterClient(as(i, "gateway/g"))
		code(t, bind(ctxFor(t), g, "viewer", "user", "eve"), codes.PermissionDenied) // a gateway for itself
		code(t, bind(with(t, dial.KeyOnBehalf, "persys://c1/user/admin"), g, "admin", "user", "eve"), codes.PermissionDenied)
		code(t, put(with(t, dial.KeyUser, token1, dial.KeyAccess, "admin"), g, "more", "trust"), codes.PermissionDenied)
	}
	// A user whose only permission is "namespaces" must not be able to release herself from a namespace.
	ok(t, put(ctxFor(t), admin, "spaces", "namespaces"))
	ok(t, bind(ctxFor(t), admin, "spaces", "user", "ada"))
	ada := clusterv1.NewClusterClient(as(1, "user/ada"))
	err := second(ada.PutNamespace(ctxFor(t), &clusterv1.PutNamespaceRequest{Name: "a", Release: []string{"ada"}}))
	if code(t, err, codes.PermissionDenied); err == nil || !strings.Contains(err.Error(), "trust") {
		t.Errorf("a user who releases herself from a namespace must be refused, but got: %v", err)
	}
	ok(t, second(ada.PutNamespace(ctxFor(t), &clusterv1.PutNamespaceRequest{Name: "a", Users: []string{"ada"}, Description: "hers"})))
}

// TestChangedUsersGetNoMoreThanTheCallerHas: a person with the permission trust may release a user from a namespace,
// or add a user who has rights only in some namespaces to another one, only if the person has the rights that the user
// gains by this.
func TestChangedUsersGetNoMoreThanTheCallerHas(t *testing.T) {
	_, as := spaces(t)
	admin := clusterv1.NewClusterClient(as(0, "user/admin"))
	ok(t, second(admin.PutRole(ctxFor(t), &clusterv1.PutRoleRequest{Name: "keys", Permissions: []string{"trust", "namespaces"}})))
	ok(t, second(admin.BindRole(ctxFor(t), &clusterv1.BindRoleRequest{Role: "keys", Kind: "user", Name: "bob", Everywhere: true})))
	may := func(c clusterv1.ClusterClient, namespace string) bool {
		a, err := c.CheckAccess(ctxFor(t), &clusterv1.CheckAccessRequest{Verb: "deploy", Namespace: namespace})
		ok(t, err)
		return a.GetAllowed()
	}
	for i := range 2 {
		bob := clusterv1.NewClusterClient(as(i, "user/bob")) // an operator in b, with the role keys
		put := func(name, release string, users ...string) error {
			req := &clusterv1.PutNamespaceRequest{Name: name, Users: users}
			if release != "" {
				req.Release = []string{release}
			}
			return second(bob.PutNamespace(ctxFor(t), req))
		}
		says(t, put("b", "bob"), codes.PermissionDenied, "release user bob")
		says(t, put("b", "ada", "bob"), codes.PermissionDenied, "release user ada")
		says(t, put("a", "", "ada", "bob"), codes.PermissionDenied, "add user bob to namespace a")
		is(t, "whether user bob of namespace b may deploy in namespace a", may(bob, "a"), false)
		ok(t, put("b", "", "bob", fmt.Sprint("eve", i)))        // eve loses rights
		ok(t, put("b", "", "bob", fmt.Sprint("eve", i), "ada")) // ada would gain rights in namespace b, and bob has these rights there
		ok(t, put("b", "", "bob", fmt.Sprint("eve", i)))        // ada is still a user of a
		is(t, "whether user ada may deploy in namespace b after she was removed from its users", may(clusterv1.NewClusterClient(as(i, "user/ada")), "b"), false)
		ok(t, second(admin.PutNamespace(ctxFor(t), &clusterv1.PutNamespaceRequest{Name: "b", Users: []string{"bob"}, Release: []string{fmt.Sprint("eve", i)}})))
	}
	ok(t, second(admin.PutNamespace(ctxFor(t), &clusterv1.PutNamespaceRequest{Name: "b", Release: []string{"bob"}})))
	is(t, "whether user bob may deploy in namespace a after an admin has released him from namespace b", may(clusterv1.NewClusterClient(as(1, "user/bob")), "a"), true)
}

// TestAPutWithoutTrustUndoesNoConfinement: a caller without the permission trust puts a namespace, and the namespace's
// users change between the check of the put and its commit. The put must be refused, because it would write the old
// list of users.
func TestAPutWithoutTrustUndoesNoConfinement(t *testing.T) {
	g, as := spaces(t)
	admin := clusterv1.NewClusterClient(as(0, "user/admin"))
	ok(t, second(admin.PutRole(ctxFor(t), &clusterv1.PutRoleRequest{Name: "spaces", Permissions: []string{"namespaces"}})))
	ok(t, second(admin.BindRole(ctxFor(t), &clusterv1.BindRoleRequest{Role: "spaces", Kind: "user", Name: "ada", Everywhere: true})))
	ada := clusterv1.NewClusterClient(as(0, "user/ada"))
	for name, version := range map[string]*uint64{"without a version": nil, "with a version that the check has not seen": new(uint64)} {
		t.Run(name, func(t *testing.T) {
			g.do(&commandv1.Command{Body: &commandv1.Command_PutNamespace{PutNamespace: &commandv1.PutNamespace{Name: "a", Users: []string{"ada"}}}})
			ok(t, second(ada.PutNamespace(ctxFor(t), &clusterv1.PutNamespaceRequest{Name: "a", Users: []string{"ada"}, Description: name})))
			g.replicas[0].set(func(r *replica) { r.lagging = true })
			g.do(&commandv1.Command{Body: &commandv1.Command_PutNamespace{PutNamespace: &commandv1.PutNamespace{Name: "a", Users: []string{"ada", "eve"}}}})
			n, _ := g.now().Namespace("a")
			if version != nil {
				version = &n.ModifyIndex
			}
			err := second(ada.PutNamespace(ctxFor(t), &clusterv1.PutNamespaceRequest{Name: "a", Users: []string{"ada"}, Release: []string{"eve"}, IfVersion: version}))
			says(t, err, codes.Aborted, "but the request is for version")
			g.replicas[0].set(func(r *replica) { r.lagging = false; r.store.Restore(g.now()) })
			n, _ = g.now().Namespace("a")
			is(t, "users of the namespace after the refused put", strings.Join(n.Users, " "), "ada eve")
			g.do(&commandv1.Command{Body: &commandv1.Command_PutNamespace{PutNamespace: &commandv1.PutNamespace{Name: "a", Users: []string{"ada"}, Release: []string{"eve"}}}})
		})
	}
}

// TestTokensGiveNoMoreRightsThanTheirCreatorHas: nobody can create a join token that gives its holder more rights than the creator of
// the token has.
func TestTokensGiveNoMoreRightsThanTheirCreatorHas(t *testing.T) {
	w := newOwnCA(t)
	admin := clusterv1.NewClusterClient(w.as(0, w.holds(pki.Identity{Role: pki.RoleUser, ID: "admin"})))
	bob := w.signed(pki.Identity{Role: pki.RoleUser, ID: "bob"})
	w.admit(bob, "none")
	ok(t, second(admin.PutRole(ctxFor(t), &clusterv1.PutRoleRequest{Name: "keys", Permissions: []string{"trust", "read"}})))
	ok(t, second(admin.BindRole(ctxFor(t), &clusterv1.BindRoleRequest{Role: "keys", Kind: "user", Name: "bob", Everywhere: true})))
	ok(t, second(admin.BindRole(ctxFor(t), &clusterv1.BindRoleRequest{Role: "admin", Kind: "user", Name: "root", Everywhere: true})))
	for i := range 2 {
		c := clusterv1.NewTrustClient(w.as(i, bob))
		make := func(role, name, access string) error {
			return second(c.CreateToken(ctxFor(t), &clusterv1.CreateTokenRequest{Role: role, Name: name, Access: access}))
		}
		code(t, make("user", "eve", "admin"), codes.PermissionDenied)
		code(t, make("user", "eve", "viewer"), codes.PermissionDenied) // bob may not read logs
		code(t, make("user", "root", "none"), codes.PermissionDenied)  // root has further permissions by a binding
		code(t, make("scheduler", "", ""), codes.PermissionDenied)
		code(t, make("gateway", "g2", ""), codes.PermissionDenied)
		code(t, make("agent", "n", ""), codes.PermissionDenied)
		ok(t, make("user", "eve", "none"))
		code(t, second(c.PutAuthority(ctxFor(t), &clusterv1.PutAuthorityRequest{})), codes.PermissionDenied)
		code(t, second(c.DropAuthority(ctxFor(t), &clusterv1.DropAuthorityRequest{Id: "x"})), codes.PermissionDenied)
	}
}

// TestATokenGivesNoRightsThatCameLater: if the user of a join token gets more rights after the rights of the token's
// creator were checked, the token must not give these rights to its holder.
func TestATokenGivesNoRightsThatCameLater(t *testing.T) {
	w := newOwnCA(t)
	admin := clusterv1.NewClusterClient(w.as(0, w.holds(pki.Identity{Role: pki.RoleUser, ID: "admin"})))
	f := w.signed(pki.Identity{Role: pki.RoleUser, ID: "bob"})
	w.admit(f, "none")
	ok(t, second(admin.PutRole(ctxFor(t), &clusterv1.PutRoleRequest{Name: "keys", Permissions: []string{"trust"}})))
	ok(t, second(admin.BindRole(ctxFor(t), &clusterv1.BindRoleRequest{Role: "keys", Kind: "user", Name: "bob", Everywhere: true})))
	bob := clusterv1.NewTrustClient(w.as(0, f))
	create := func(name string) (pki.JoinToken, error) {
		r, err := bob.CreateToken(ctxFor(t), &clusterv1.CreateTokenRequest{Role: "user", Name: name, Access: "none"})
		if err != nil {
			return pki.JoinToken{}, err
		}
		return pki.ParseJoinToken(r.GetToken())
	}
	bind := func(name string) *commandv1.Command {
		return &commandv1.Command{Body: &commandv1.Command_BindRole{BindRole: &commandv1.BindRole{Role: "admin", Kind: "user", Name: name, Everywhere: true}}}
	}
	tok, err := create("dave")
	ok(t, err)
	w.do(bind("dave"))
	_, _, err = w.enrol(1, tok, "dave")
	says(t, err, codes.NotFound, "was deleted")
	is(t, "event", w.lastEvent(fsm.EventTokenDeleted).Reason, fsm.CodeRightsChanged)
	// The hook commits the binding after the check of the request and before the commit of the token. The hook may also
	// run too early, when the leader confirms its leadership before the check; then try again with another name.
	for n := range 10 {
		name := fmt.Sprint("eve", n)
		var once sync.Once
		w.replicas[0].set(func(r *replica) {
			r.before = func(context.Context) error {
				once.Do(func() { w.do(bind(name)) })
				return nil
			}
		})
		_, err = create(name)
		code(t, err, codes.PermissionDenied)
		w.replicas[0].set(func(r *replica) { r.before = nil })
		committed := false
		w.view().Tokens(func(tok *fsm.Token) bool {
			committed = committed || tok.Name == name
			return true
		})
		if committed {
			return
		}
	}
	t.Error("in none of 10 attempts was the binding committed between the check of the request and the commit of the token")
}

// TestBoundRolesGiveRights: a user, a group of an OIDC token and an account have the roles that are bound to
// them, in the namespaces of the binding, at every replica.
func TestBoundRolesGiveRights(t *testing.T) {
	g, as := spaces(t)
	admin := clusterv1.NewClusterClient(as(0, "user/admin"))
	ok(t, second(admin.PutRole(ctxFor(t), &clusterv1.PutRoleRequest{Name: "ci", Permissions: []string{"deploy", "read"}})))
	for _, b := range []*clusterv1.BindRoleRequest{
		{Role: "ci", Kind: "user", Name: "ada", Namespaces: []string{"b"}},
		{Role: "ci", Kind: "group", Name: "/team, a", Namespaces: []string{"a"}},
		{Role: "ci", Kind: "user", Name: token1, Namespaces: []string{"b"}},
	} {
		ok(t, second(admin.BindRole(ctxFor(t), b)))
	}
	r, err := admin.CreateAccount(ctxFor(t), &clusterv1.CreateAccountRequest{Name: "bot", Role: "ci", Namespaces: []string{"a"}})
	ok(t, err)
	groups, err := dial.EncodeGroups([]string{"other", "/team, a"})
	ok(t, err)
	n := 0
	for _, x := range []struct {
		name, cert string
		md         []string
		a, b       bool // a user who may deploy in namespaces a and b
	}{
		{"an operator of namespace a with a binding in namespace b", "user/ada", nil, true, true},
		{"a group", "gateway/g", []string{dial.KeyUser, "oidc:https://idp.example.com#eve", dial.KeyAccess, "none", dial.KeyGroups, groups}, true, false},
		{"a user of an OIDC issuer with a bound role, in a group with a bound role", "gateway/g", []string{dial.KeyUser, token1, dial.KeyAccess, "none", dial.KeyGroups, groups}, true, true},
		{"a user of an OIDC issuer without a bound role and without groups", "gateway/g", []string{dial.KeyUser, "oidc:https://idp.example.com#eve", dial.KeyAccess, "none"}, false, false},
		{"an account", "gateway/g", []string{dial.KeyAccountToken, r.GetToken()}, true, false},
		{"an account with a role in namespace a that limits its call to namespace b", "gateway/g", []string{dial.KeyAccountToken, r.GetToken(), dial.KeyNamespaces, "b"}, false, false},
	} {
		for i := range 2 {
			for ns, want := range map[string]bool{"a": x.a, "b": x.b} {
				n++
				resp, err := clusterv1.NewClusterClient(as(i, x.cert)).ApplyWorkloads(with(t, x.md...), &clusterv1.ApplyWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{webIn(fmt.Sprint("w", n), ns)}})
				if err == nil {
					err = inBand(resp.GetResults()[0], nil)
				}
				if (err == nil) != want {
					t.Errorf("the apply of caller %q at replica %d in namespace %q returned %v, but the case expects the opposite (success or refusal)", x.name, i, ns, err)
				}
			}
		}
	}
	is(t, "author of the last recorded event", kept(g)[len(kept(g))-1].By, "account:bot")
	who, err := clusterv1.NewClusterClient(as(1, "gateway/g")).GetAccess(with(t, dial.KeyAccountToken, r.GetToken()), &clusterv1.GetAccessRequest{})
	ok(t, err)
	is(t, "identity", who.GetIdentity(), "account:bot")
	is(t, "grants", fmt.Sprint(who.GetGrants()[0].GetRole(), who.GetGrants()[0].GetNamespaces()), "ci[a]")
	// A change of a role and the removal of a binding must take effect at once.
	ok(t, second(admin.PutRole(ctxFor(t), &clusterv1.PutRoleRequest{Name: "ci", Permissions: []string{"read"}})))
	code(t, second(clusterv1.NewClusterClient(as(0, "gateway/g")).PlanWorkloads(with(t, dial.KeyAccountToken, r.GetToken()), &clusterv1.PlanWorkloadsRequest{})), codes.PermissionDenied)
}

// TestAGatewayLimitsBoundRolesToo: the namespaces that a gateway gives to its user limit the role in the token and
// the roles that are bound to the user and to the user's groups.
func TestAGatewayLimitsBoundRolesToo(t *testing.T) {
	_, as := spaces(t)
	admin := clusterv1.NewClusterClient(as(0, "user/admin"))
	for _, b := range []*clusterv1.BindRoleRequest{
		{Role: "operator", Kind: "user", Name: token1, Everywhere: true},
		{Role: "operator", Kind: "group", Name: "team", Namespaces: []string{"a", "b"}},
	} {
		ok(t, second(admin.BindRole(ctxFor(t), b)))
	}
	groups, err := dial.EncodeGroups([]string{"team"})
	ok(t, err)
	for i := range 2 {
		g := clusterv1.NewClusterClient(as(i, "gateway/g"))
		ctx := func() context.Context {
			return with(t, dial.KeyUser, token1, dial.KeyAccess, "viewer", dial.KeyGroups, groups, dial.KeyNamespaces, "a")
		}
		r, err := g.GetAccess(ctx(), &clusterv1.GetAccessRequest{})
		ok(t, err)
		for _, grant := range r.GetGrants() {
			is(t, "whether role "+grant.GetRole()+" applies everywhere, and its namespaces", fmt.Sprint(grant.GetEverywhere(), grant.GetNamespaces()), "false [a]")
		}
		for ns, want := range map[string]bool{"a": true, "b": false} {
			a, err := g.CheckAccess(ctx(), &clusterv1.CheckAccessRequest{Verb: "deploy", Namespace: ns})
			ok(t, err)
			is(t, "whether the user may deploy in namespace "+ns, a.GetAllowed(), want)
		}
	}
}

// TestAccountTokens: an account's token is accepted only from a gateway, and only until it expires,
// is replaced, or its account is deleted. Refusals are recorded without the name of an account, and only the first
// refusals are recorded one by one.
func TestAccountTokens(t *testing.T) {
	g, as := spaces(t)
	admin := clusterv1.NewClusterClient(as(0, "user/admin"))
	request := requestID(t)
	create := &clusterv1.CreateAccountRequest{Name: "ci", Role: "operator", Namespaces: []string{"a"}, TtlSeconds: 3600, RequestId: request}
	r, err := admin.CreateAccount(ctxFor(t), create)
	ok(t, err)
	again, err := admin.CreateAccount(ctxFor(t), create)
	ok(t, err)
	is(t, "token of the repeated request", again.GetToken(), r.GetToken())
	left := time.Until(r.GetAccount().GetExpiresAt().AsTime())
	is(t, "whether the token is valid for about one hour", left > 59*time.Minute && left < 61*time.Minute, true)
	for _, l := range []int64{-1, 31 * 24 * 3600} {
		code(t, second(admin.CreateAccount(ctxFor(t), &clusterv1.CreateAccountRequest{Name: "long", TtlSeconds: l})), codes.InvalidArgument)
	}
	list := func(i int, cert string, md ...string) error {
		return second(controlv1.NewAgentControlClient(as(i, cert)).ListWorkloads(with(t, md...), &controlv1.ListWorkloadsRequest{}))
	}
	for i := range 2 {
		ok(t, list(i, "gateway/g", dial.KeyAccountToken, r.GetToken()))
		code(t, list(i, "gateway/g", dial.KeyAccountToken, r.GetToken()+"x"), codes.Unauthenticated)
		code(t, list(i, "gateway/g", dial.KeyAccountToken, "persys~other~x"), codes.Unauthenticated)
		code(t, list(i, "gateway/g", dial.KeyAccountToken, "nonsense"), codes.Unauthenticated)
		code(t, list(i, "gateway/g", dial.KeyAccount, "ci"), codes.Unauthenticated) // account ci has no OIDC issuer
		code(t, list(i, "gateway/g", dial.KeyAccountToken, r.GetToken(), dial.KeyUser, token1), codes.InvalidArgument)
		for _, cert := range []string{"user/ada", "agent/a", "scheduler/s1"} {
			code(t, list(i, cert, dial.KeyAccountToken, r.GetToken()), codes.PermissionDenied)
			code(t, list(i, cert, dial.KeyAccount, "ci"), codes.PermissionDenied)
		}
	}
	// Callers with invented accounts that try a change must leave few records.
	before := len(refusedCalls(g))
	for i := range 60 {
		code(t, second(clusterv1.NewClusterClient(as(0, "gateway/g")).ApplyWorkloads(with(t, dial.KeyAccountToken, fmt.Sprintf("persys~a%d~x", i)), &clusterv1.ApplyWorkloadsRequest{})), codes.Unauthenticated)
	}
	all := refusedCalls(g)
	is(t, "records of 60 refusals", len(all)-before, refusalEach)
	is(t, "author of the refusal records of callers with unknown accounts", all[len(all)-1].By, unknownAccount)
	next, err := admin.RotateAccount(ctxFor(t), &clusterv1.RotateAccountRequest{Name: "ci"})
	ok(t, err)
	code(t, list(0, "gateway/g", dial.KeyAccountToken, r.GetToken()), codes.Unauthenticated)
	ok(t, list(1, "gateway/g", dial.KeyAccountToken, next.GetToken()))
	// An open stream must end when its account is deleted.
	s, err := clusterv1.NewClusterClient(as(1, "gateway/g")).Events(with(t, dial.KeyAccountToken, next.GetToken()), &clusterv1.EventsRequest{Follow: true, Tail: 1})
	ok(t, err)
	ok(t, second(admin.DeleteAccount(ctxFor(t), &clusterv1.DeleteAccountRequest{Name: "ci"})))
	for err == nil {
		_, err = s.Recv()
	}
	code(t, err, codes.Unauthenticated)
	code(t, list(0, "gateway/g", dial.KeyAccountToken, next.GetToken()), codes.Unauthenticated)
	// A token expires without a command.
	r, err = admin.CreateAccount(ctxFor(t), &clusterv1.CreateAccountRequest{Name: "ci2", Role: "viewer", Everywhere: true, TtlSeconds: 60})
	ok(t, err)
	ok(t, list(0, "gateway/g", dial.KeyAccountToken, r.GetToken()))
	g.do(&commandv1.Command{Head: &commandv1.Head{At: time.Now().Add(2 * time.Minute).UnixNano()}, Body: &commandv1.Command_Barrier{Barrier: &commandv1.Barrier{}}})
	err = list(0, "gateway/g", dial.KeyAccountToken, r.GetToken())
	if code(t, err, codes.Unauthenticated); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("a call with an expired token returned %v, want an error that says expired", err)
	}
}

// TestANewAccountIsNamedAtALaggingFollower: a program uses a new account at a follower that has not applied the
// creation of the account yet. The follower must catch up with the leader first, so that the audit log contains the
// name of the account.
func TestANewAccountIsNamedAtALaggingFollower(t *testing.T) {
	g, as := spaces(t)
	g.place("web", "a")
	leads, follower := g.replicas[0], g.replicas[1]
	follower.set(func(r *replica) { r.lagging = true })
	r, err := clusterv1.NewClusterClient(as(0, "user/admin")).CreateAccount(ctxFor(t), &clusterv1.CreateAccountRequest{Name: "ci", Role: "operator", Everywhere: true})
	ok(t, err)
	leads.set(func(r *replica) {
		r.before = func(context.Context) error {
			follower.set(func(r *replica) { r.lagging = false; r.store.Restore(g.now()) })
			return nil
		}
	})
	_, _, _, err = heard(openWith(t, with(t, dial.KeyAccountToken, r.GetToken()), clusterv1.NewClusterClient(as(1, "gateway/g")), &clusterv1.ExecOpen{WorkloadId: "web", Command: []string{"sh"}}))
	code(t, err, codes.Unavailable) // there is no agent
	var by []string
	for _, e := range kept(g) {
		if e.Type == fsm.EventSessionOpened || e.Type == fsm.EventSessionClosed {
			by = append(by, e.By)
		}
	}
	is(t, "events of the session are by", strings.Join(by, " "), "account:ci account:ci")
}

// TestAccountsOfAnIssuer: a gateway has verified an OIDC token of an account and sends the account's name. The
// schedulers must give the call the rights of this account.
func TestAccountsOfAnIssuer(t *testing.T) {
	_, as := spaces(t)
	admin := clusterv1.NewClusterClient(as(0, "user/admin"))
	create := func(issuer string, claims map[string]string, ttl int64) error {
		r, err := admin.CreateAccount(ctxFor(t), &clusterv1.CreateAccountRequest{
			Name: "ci", Issuer: issuer, Audience: "persys", Claims: claims, TtlSeconds: ttl, Role: "operator", Namespaces: []string{"a"},
		})
		if err == nil && r.GetToken() != "" {
			t.Error("an account of an issuer must not get a token, but has one")
		}
		return err
	}
	repository := map[string]string{"repository": "shop/web"}
	code(t, create("http://ci.example", repository, 0), codes.InvalidArgument)
	code(t, create("https://ci.example", nil, 0), codes.InvalidArgument)
	code(t, create("https://ci.example", repository, 60), codes.InvalidArgument)
	ok(t, create("https://ci.example", repository, 0))
	code(t, second(admin.RotateAccount(ctxFor(t), &clusterv1.RotateAccountRequest{Name: "ci"})), codes.FailedPrecondition)
	apply := func(i int, ns string) error {
		r, err := clusterv1.NewClusterClient(as(i, "gateway/g")).ApplyWorkloads(with(t, dial.KeyAccount, "ci"), &clusterv1.ApplyWorkloadsRequest{Workloads: []*controlv1.ApplyWorkloadRequest{webIn("w"+ns, ns)}})
		if err == nil {
			err = inBand(r.GetResults()[0], nil)
		}
		return err
	}
	for i := range 2 {
		ok(t, apply(i, "a"))
		if apply(i, "b") == nil {
			t.Error("the account has made a call in a namespace in which it has no binding")
		}
	}
	// Gateways get the list of accounts from the schedulers.
	l, err := clusterv1.NewClusterClient(as(1, "gateway/g")).ListAccounts(ctxFor(t), &clusterv1.ListAccountsRequest{})
	ok(t, err)
	is(t, "claims", l.GetAccounts()[0].GetClaims()["repository"], "shop/web")
}

func refusedCalls(g *group) (out []*fsm.Event) {
	for _, e := range kept(g) {
		if e.Type == fsm.EventCallRefused {
			out = append(out, e)
		}
	}
	return out
}
