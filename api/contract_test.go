package api_test

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "github.com/persys/compute/api/agent/v1"
	_ "github.com/persys/compute/api/cluster/v1"
	_ "github.com/persys/compute/api/command/v1"
	_ "github.com/persys/compute/api/control/v1"
)

var update = flag.Bool("update", false, "add new numbers to testdata/*.golden; never changes or removes a line")

// firstOwn is the lowest number of the fields that this project adds to messages that it shares with legacy
// v1 peers. Those peers skip fields that they do not know.
const firstOwn = 1000

// apis names every API of the project. Every api/*/v1/*.proto must be in it.
var apis = []struct {
	file     string
	contract string // file with the contract table shared with legacy v1 peers; "" = none
	golden   string
}{
	{"api/control/v1/control.proto", "testdata/control.tsv", "testdata/control.golden"},
	{"api/agent/v1/agent.proto", "testdata/agent.tsv", "testdata/agent.golden"},
	{"api/cluster/v1/cluster.proto", "", "testdata/cluster.golden"},
	{"api/command/v1/command.proto", "", "testdata/command.golden"},
}

func descriptor(t *testing.T, file string) protoreflect.FileDescriptor {
	t.Helper()
	fd, err := protoregistry.GlobalFiles.FindFileByPath(file)
	if err != nil {
		t.Fatalf("no descriptor is registered as %s: descriptor names are paths from the repository's root, so that they clash with no other copy of the contract: %v", file, err)
	}
	return fd
}

func TestEveryProtoFileIsChecked(t *testing.T) {
	sources, err := filepath.Glob("*/v*/*.proto")
	if err != nil || len(sources) == 0 {
		t.Fatalf("found %d proto files, error %v, want at least one", len(sources), err)
	}
	for _, source := range sources {
		name := "api/" + filepath.ToSlash(source)
		if !slices.ContainsFunc(apis, func(a struct{ file, contract, golden string }) bool { return a.file == name }) {
			t.Errorf("API file %s must be in the list apis of this test, but is not", name)
		}
	}
}

// TestContract compares the APIs that are shared with legacy v1 peers with the contract table: the API must
// have every entry of the table unchanged, and further fields and enum values only with numbers from
// firstOwn on.
func TestContract(t *testing.T) {
	for _, a := range apis {
		if a.contract == "" {
			continue
		}
		t.Run(filepath.Base(a.contract), func(t *testing.T) {
			compare(t, descriptor(t, a.file), readContract(t, a.contract))
		})
	}
}

// contract holds the lines of one contract table: a file testdata/*.tsv with the numbers that legacy v1 peers
// use.
type contract struct {
	rpcs     map[string][]string // for each RPC: its request, response and streaming
	enums    map[string]map[string]string
	messages map[string]map[string]string // for each message and field number: "name type cardinality"
}

func readContract(t *testing.T, path string) contract {
	t.Helper()
	c := contract{map[string][]string{}, map[string]map[string]string{}, map[string]map[string]string{}}
	for n, line := range readLines(t, path) {
		f := strings.Split(line, "\t")
		switch {
		case strings.HasPrefix(line, "#"):
		case f[0] == "rpc" && len(f) == 5:
			c.rpcs[f[1]] = f[2:]
		case f[0] == "enum" && len(f) == 2:
			c.enums[f[1]] = map[string]string{}
		case f[0] == "value" && len(f) == 4:
			c.enums[f[1]][f[2]] = f[3]
		case f[0] == "message" && len(f) == 2:
			c.messages[f[1]] = map[string]string{}
		case f[0] == "field" && len(f) == 6:
			c.messages[f[1]][f[2]] = strings.Join(f[3:], " ")
		default:
			t.Fatalf("%s:%d: the line %q is in none of the forms of the contract table", path, n+1, line)
		}
	}
	if len(c.rpcs) == 0 || len(c.enums) == 0 || len(c.messages) == 0 {
		t.Fatalf("%s holds %d RPCs, %d enums and %d messages, want at least one of each", path, len(c.rpcs), len(c.enums), len(c.messages))
	}
	return c
}

func compare(t *testing.T, fd protoreflect.FileDescriptor, want contract) {
	if n := fd.Services().Len(); n != 1 {
		t.Fatalf("%s has %d services, the contract has 1", fd.Path(), n)
	}
	for name, row := range want.rpcs {
		m := fd.Services().Get(0).Methods().ByName(protoreflect.Name(name))
		if m == nil {
			t.Errorf("rpc %s is missing", name)
			continue
		}
		if got := rpc(m); got != strings.Join(row, " ") {
			t.Errorf("rpc %s is %q, the contract says %q", name, got, strings.Join(row, " "))
		}
	}
	for name, values := range want.enums {
		e := fd.Enums().ByName(protoreflect.Name(name))
		if e == nil {
			t.Errorf("enum %s is missing", name)
			continue
		}
		got := map[string]string{}
		for i := range e.Values().Len() {
			v := e.Values().Get(i)
			number := fmt.Sprint(v.Number())
			got[number] = string(v.Name())
			if _, ok := values[number]; !ok && v.Number() < firstOwn {
				t.Errorf("enum %s: %s = %d is not in the contract; our own values start at %d", name, v.Name(), v.Number(), firstOwn)
			}
		}
		for number, value := range values {
			if got[number] != value {
				t.Errorf("enum %s: %s is %q, the contract says %q", name, number, got[number], value)
			}
		}
	}
	for name, fields := range want.messages {
		m := fd.Messages().ByName(protoreflect.Name(name))
		if m == nil {
			t.Errorf("message %s of the contract must exist, but is missing", name)
			continue
		}
		got := map[string]string{}
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			number := fmt.Sprint(f.Number())
			got[number] = field(f)
			if _, ok := fields[number]; !ok && f.Number() < firstOwn {
				t.Errorf("%s.%s = %d is not in the contract: our own fields start at %d, and gaps below are not free", name, f.Name(), f.Number(), firstOwn)
			}
		}
		for number, row := range fields {
			if got[number] != row {
				t.Errorf("%s: field %s is %q, the contract says %q", name, number, got[number], row)
			}
		}
	}
}

// TestNumbersAreAppendOnly compares every descriptor with the list of all numbers ever used. A published
// number must keep its name, type and cardinality, because older peers, log entries and snapshots use it. A
// field that is no longer needed stays and is marked as deprecated.
func TestNumbersAreAppendOnly(t *testing.T) {
	for _, a := range apis {
		t.Run(filepath.Base(a.golden), func(t *testing.T) {
			now := flatten(descriptor(t, a.file))
			var known []string
			if _, err := os.Stat(a.golden); err == nil {
				known = readLines(t, a.golden)
			} else if !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			for _, line := range known {
				if !slices.Contains(now, line) {
					t.Errorf("%q was published and must stay, but is gone or changed", line)
				}
			}
			added := slices.DeleteFunc(slices.Clone(now), func(line string) bool { return slices.Contains(known, line) })
			if len(added) == 0 {
				return
			}
			if !*update {
				t.Fatalf("new numbers are missing in %s (go test ./api -update adds them):\n%s", a.golden, strings.Join(added, "\n"))
			}
			// -update only adds lines to the list: if a published number has disappeared, the test must
			// still fail.
			all := append(known, added...)
			slices.Sort(all)
			if err := os.WriteFile(a.golden, []byte(strings.Join(all, "\n")+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// flatten returns one line for each number and name that must not change because peers and files on disk
// use it.
func flatten(fd protoreflect.FileDescriptor) []string {
	var lines []string
	enum := func(e protoreflect.EnumDescriptor) {
		for i := range e.Values().Len() {
			v := e.Values().Get(i)
			lines = append(lines, fmt.Sprintf("enum %s %04d %s", e.FullName(), v.Number(), v.Name()))
		}
	}
	var message func(m protoreflect.MessageDescriptor)
	message = func(m protoreflect.MessageDescriptor) {
		if m.IsMapEntry() {
			return
		}
		lines = append(lines, fmt.Sprintf("message %s", m.FullName()))
		for i := range m.Fields().Len() {
			f := m.Fields().Get(i)
			lines = append(lines, fmt.Sprintf("field %s %04d %s", m.FullName(), f.Number(), field(f)))
		}
		for i := range m.Messages().Len() {
			message(m.Messages().Get(i))
		}
		for i := range m.Enums().Len() {
			enum(m.Enums().Get(i))
		}
	}
	for i := range fd.Services().Len() {
		s := fd.Services().Get(i)
		for j := range s.Methods().Len() {
			m := s.Methods().Get(j)
			lines = append(lines, fmt.Sprintf("rpc %s %s", m.FullName(), rpc(m)))
		}
	}
	for i := range fd.Messages().Len() {
		message(fd.Messages().Get(i))
	}
	for i := range fd.Enums().Len() {
		enum(fd.Enums().Get(i))
	}
	slices.Sort(lines)
	return lines
}

// field returns a field in the form of the contract tables: name, type, cardinality.
func field(f protoreflect.FieldDescriptor) string {
	kind := kindName(f)
	card := "one"
	switch {
	case f.IsMap():
		kind = fmt.Sprintf("map<%s,%s>", kindName(f.MapKey()), kindName(f.MapValue()))
		card = "map"
	case f.IsList():
		card = "repeated"
	case f.ContainingOneof() != nil && !f.ContainingOneof().IsSynthetic():
		card = "oneof " + string(f.ContainingOneof().Name())
	case f.HasOptionalKeyword():
		card = "optional"
	}
	return fmt.Sprintf("%s %s %s", f.Name(), kind, card)
}

func kindName(f protoreflect.FieldDescriptor) string {
	switch f.Kind() {
	case protoreflect.EnumKind:
		return string(f.Enum().Name())
	case protoreflect.MessageKind:
		return string(f.Message().Name())
	default:
		return f.Kind().String()
	}
}

// rpc returns a method in the form of the contract tables: request, response, streaming.
func rpc(m protoreflect.MethodDescriptor) string {
	streaming := "unary"
	switch {
	case m.IsStreamingClient() && m.IsStreamingServer():
		streaming = "bidi"
	case m.IsStreamingClient():
		streaming = "client"
	case m.IsStreamingServer():
		streaming = "server"
	}
	return fmt.Sprintf("%s %s %s", m.Input().Name(), m.Output().Name(), streaming)
}

func readLines(t *testing.T, path string) []string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var lines []string
	s := bufio.NewScanner(f)
	for s.Scan() {
		lines = append(lines, s.Text())
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}
