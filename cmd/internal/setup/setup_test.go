package setup

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
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
				t.Errorf("no JSON: %s", out.String())
			}
		}
		if !strings.Contains(out.String(), want) || strings.Count(out.String(), "\n") != 1 {
			t.Errorf("%s: %s, want %s", format, out.String(), want)
		}
	}
	if _, err := Logger(&bytes.Buffer{}, "loud", "text"); err == nil || !strings.Contains(err.Error(), "LOG_LEVEL") {
		t.Errorf("an unknown level: %v", err)
	}
}

// A file that is named is read; without a name the first existing file is read.
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
		want            string // with "!": an error must contain it
	}{
		{"the flag's, whatever else is there", file("flag"), file("env"), []string{file("second")}, "flag"},
		{"the environment's, whatever else is there", "", file("env"), []string{file("second")}, "env"},
		{"the first that is there", "", "", []string{file("first"), file("second"), file("third")}, "second"},
		{"none is there", "", "", []string{file("first")}, ""},
		{"none is looked for", "", "", nil, ""},
		{"what is named has to be there", "", file("first"), []string{file("second")}, "!" + file("first")},
		{"what is there has to be a file", "", "", []string{dir}, "!" + dir},
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
					t.Errorf("%v, want an error about %s", err, want)
				}
			} else if err != nil || cfg.Name != want {
				t.Errorf("read %q, %v; want %q", cfg.Name, err, want)
			}
		})
	}
}

// ps shows no join token, in whatever form it was given.
func TestTakeArgs(t *testing.T) {
	const token = "persys-join-1.abc.def"
	var args []string // in writable memory, as os.Args is
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
