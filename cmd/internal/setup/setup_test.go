package setup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// All log lines use the same keys and formats.
func TestLoggerNormalizesAttributes(t *testing.T) {
	for _, format := range []string{"json", "text"} {
		var out bytes.Buffer
		log, err := Logger(&out, "info", format)
		if err != nil {
			t.Fatal(err)
		}
		log.Debug("not said")
		log.Warn("said", "workload", "web", "node", "", "index", uint64(7), "error", errors.New("broken"), "took", 1500*time.Millisecond)
		want := `level=WARN msg=said workload=web index=7 err=broken took=1.5s`
		if format == "json" {
			want = `"level":"WARN","msg":"said","workload":"web","index":7,"err":"broken","took":"1.5s"`
			if !json.Valid(out.Bytes()) {
				t.Errorf("with the log format json the output is not JSON: %s", out.String())
			}
		}
		if !strings.Contains(out.String(), want) || strings.Count(out.String(), "\n") != 1 {
			t.Errorf("with the log format %s the output is %s, want %s", format, out.String(), want)
		}
	}
	if _, err := Logger(&bytes.Buffer{}, "loud", "text"); err == nil || !strings.Contains(err.Error(), "LOG_LEVEL") {
		t.Errorf("an unknown log level was accepted or refused with the wrong error: %v", err)
	}
}

// The settings file that the environment variable names is read. If the variable is not set, the first
// default file that exists is read.
func TestWhichFileIsRead(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"flag", "env", "second", "third"} {
		if err := os.WriteFile(file(name), []byte("name: "+name+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	defer func(args []string) { os.Args = args }(os.Args)
	for _, tt := range []struct {
		name, flag, env string
		files           []string
		want            string // expected value, or "!" and a part of the expected error
	}{
		{"the file named by the flag takes precedence over all others", file("flag"), file("env"), []string{file("second")}, "flag"},
		{"the file named by the environment takes precedence over the default files", "", file("env"), []string{file("second")}, "env"},
		{"the first default file that exists", "", "", []string{file("first"), file("second"), file("third")}, "second"},
		{"no configuration file exists", "", "", []string{file("first")}, ""},
		{"no configuration file is looked for", "", "", nil, ""},
		{"a file that a setting names must exist", "", file("first"), []string{file("second")}, "!" + file("first")},
		{"a folder is refused", "", "", []string{dir}, "!" + dir},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("PERSYS_TEST_FILE", tt.env)
			os.Args = []string{"test", "--config", tt.flag}
			var cfg struct {
				Name string `yaml:"name"`
			}
			_, err := Load("test", "", "", &cfg, "PERSYS_TEST_FILE", tt.files...)
			if want, wrong := strings.CutPrefix(tt.want, "!"); wrong {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("Load returned %v, want an error about %s", err, want)
				}
			} else if err != nil || cfg.Name != want {
				t.Errorf("Load read the name %q, error %v; want %q", cfg.Name, err, want)
			}
		})
	}
}

// TakeArgs removes the join token from the arguments that `ps` shows, for every form of the flag.
func TestJoinTokensAreHiddenFromPs(t *testing.T) {
	const token = "persys-join-1.abc.def"
	var args []string // like os.Args, the arguments must be in writable memory
	for _, a := range []string{"--join", token, "--join=" + token, "--name", "x=y"} {
		args = append(args, strings.Clone(a))
	}
	got := TakeArgs(args)
	if want := "--join " + token + " --join=" + token + " --name x=y"; strings.Join(got, " ") != want {
		t.Errorf("got %q", got)
	}
	if want := "--join xxxxxxxxxxxxxxxxxxxxx --join=xxxxxxxxxxxxxxxxxxxxx --name x=y"; strings.Join(args, " ") != want {
		t.Errorf("left %q", args)
	}
}

// TestSignalsEndAProgram: SIGINT, SIGTERM and SIGHUP each end the context, so that a program cleans up, even when its
// terminal is closed.
func TestSignalsEndAProgram(t *testing.T) {
	for _, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		if signal.Ignored(end) {
			continue // this test runs under nohup, which ignores SIGHUP, so skip this signal
		}
		Main("program", func(ctx context.Context) error {
			if err := syscall.Kill(syscall.Getpid(), end); err != nil {
				t.Fatal(err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Second):
				t.Errorf("%s does not end the program", end)
			}
			return nil
		})
	}
}
