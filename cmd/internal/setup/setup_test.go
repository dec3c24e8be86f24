package setup

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

// Whoever logs: the same thing has the same key and the same form.
func TestLoggerHasOneForm(t *testing.T) {
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

// A join token is not left where ps shows it, in whichever form it was given.
func TestTakeArgs(t *testing.T) {
	const token = "persys-join-1.abc.def"
	var args []string // in memory that may be written, as that of os.Args
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
