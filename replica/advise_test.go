package replica

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/persys/compute/cluster"
)

func TestErrorsGetAdvice(t *testing.T) {
	cfg := Config{DataDir: "/data/s1"}
	for _, tt := range []struct {
		name string
		err  error
		want []string // texts that advise must add to the error
	}{
		{"damaged data", fmt.Errorf("%w: raft log x: entry 3 fails its checksum", cluster.ErrCorrupt),
			[]string{"mv /data/s1/raft /data/s1/raft.damaged", "SCHEDULER_JOIN", "persysctl backup restore"}},
		{"a full disk", fmt.Errorf("%w: %w", cluster.ErrStorage, &os.PathError{Op: "write", Path: "log.db", Err: syscall.ENOSPC}),
			[]string{"free disk space for /data/s1"}},
		{"an exceeded disk quota", &os.PathError{Op: "write", Path: "log.db", Err: syscall.EDQUOT}, []string{"free disk space for /data/s1"}},
		{"another error", cluster.ErrInUse, nil},
		{"no error", nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := cfg.advise(tt.err)
			if !errors.Is(got, tt.err) {
				t.Fatalf("the error with advice %v must still wrap %v", got, tt.err)
			}
			if len(tt.want) == 0 {
				if got != tt.err {
					t.Errorf("advise returned %v for an error without advice, want the unchanged error", got)
				}
				return
			}
			added, ok := strings.CutPrefix(got.Error(), tt.err.Error())
			if !ok {
				t.Errorf("the error with advice must begin with the text of the original error, but is %v", got)
			}
			for _, w := range tt.want {
				if !strings.Contains(added, w) {
					t.Errorf("the advice is %q, want it to contain %q", added, w)
				}
			}
		})
	}
}

func TestErrorWithoutSettingsNamesCommands(t *testing.T) {
	cfg, err := DefaultConfig()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Name, cfg.DataDir = "s1", t.TempDir()
	_, err = Start(t.Context(), cfg, "test", slog.New(slog.DiscardHandler))
	for _, want := range []string{"--init", "--join TOKEN", "persys dev"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the start of the scheduler returned error %v, want an error that contains %q", err, want)
		}
	}
}
