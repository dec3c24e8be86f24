// Package mirrortest configures etcd servers for tests of the mirror.
package mirrortest

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// User and Password are the credentials of the user that Protect creates for the mirror.
const (
	User     = "persys"
	Password = "secret"
)

// Protect enables authentication in etcd. It creates the user root (password root) and the user User. User
// may read and write all keys below /prefix/ and no other keys.
func Protect(ctx context.Context, etcd *clientv3.Client, prefix string) error {
	const role = "mirror"
	for i, step := range []func() error{
		func() error { _, err := etcd.UserAdd(ctx, "root", "root"); return err },
		func() error { _, err := etcd.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := etcd.RoleAdd(ctx, role); return err },
		func() error {
			from := "/" + prefix + "/"
			_, err := etcd.RoleGrantPermission(ctx, role, from, clientv3.GetPrefixRangeEnd(from), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := etcd.UserAdd(ctx, User, Password); return err },
		func() error { _, err := etcd.UserGrantRole(ctx, User, role); return err },
		func() error { _, err := etcd.AuthEnable(ctx); return err },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("protecting etcd, step %d: %w", i+1, err)
		}
	}
	return nil
}
