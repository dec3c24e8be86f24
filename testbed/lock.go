package testbed

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Lock waits until nobody else on this machine holds file, at most for limit, and holds it until
// release, or until this program ends in whatever way. The file stays: it says nothing.
func Lock(ctx context.Context, limit time.Duration, file string) (release func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = Poll(ctx, limit, "the lock "+file, func(context.Context) error {
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			return fmt.Errorf("somebody else holds it: %w", err)
		}
		return nil
	})
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}
