package testbed

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"
)

// Lock takes an exclusive flock(2) on file. If another process holds the lock, Lock waits, for at most the time limit.
// The lock is held until release is called or this process ends. The file is created if needed and never removed.
func Lock(ctx context.Context, limit time.Duration, file string) (release func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = Poll(ctx, limit, "the lock "+file, func(context.Context) error {
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			return fmt.Errorf("another process holds it: %w", err)
		}
		return nil
	})
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}
