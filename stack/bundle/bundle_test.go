package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPackAndUnpack(t *testing.T) {
	files := []File{
		{Path: "conf/b.conf", Data: []byte("b")},
		{Path: "conf/a.conf", Data: []byte{}},
		{Path: "run.sh", Data: []byte("#!/bin/sh"), Executable: true},
		{Path: "ümläut " + strings.Repeat("long/", 60) + "x", Data: []byte("x")},
	}
	packed, err := Pack(files)
	if err != nil {
		t.Fatal(err)
	}
	other, err := Pack([]File{files[3], files[1], files[2], files[0]})
	if err != nil || !bytes.Equal(packed, other) {
		t.Errorf("Pack of the same files in another order must return the same archive, but returned another or failed: %v", err)
	}
	got, err := Unpack(packed)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]File{files[1], files[0], files[2], files[3]}, got); diff != "" {
		t.Error(diff)
	}
}

func TestCheckRefusesPathsAndSizes(t *testing.T) {
	file := func(paths ...string) (out []File) {
		for _, p := range paths {
			out = append(out, File{Path: p})
		}
		return out
	}
	var many []string
	for i := range MaxFiles + 1 {
		many = append(many, fmt.Sprint(i))
	}
	for _, c := range []struct {
		name  string
		files []File
		want  string
	}{
		{"a file with an absolute path", file("/etc/passwd"), "is no path in the stack's folder"},
		{"a file whose path leads out of the folder", file("a/../../b"), "is no path in the stack's folder"},
		{"a file whose path is the folder itself", file("."), "is no path in the stack's folder"},
		{"a file with an empty path", file(""), "is no path in the stack's folder"},
		{"a file whose path has a backslash", file(`a\b`), "is no path in the stack's folder"},
		{"a file whose path is too long", file(strings.Repeat("a/", 300) + "a"), "has 601 bytes"},
		{"two files with the same path", file("a", "a"), "is listed twice"},
		{"a file whose path is also the folder of another file", file("a/b", "a"), `"a" is a file, but "a/b" needs a folder of this name`},
		{"too many files", file(many...), "1001 files, and a stack may have at most 1000"},
		{"too many bytes", []File{{Path: "a", Data: make([]byte, MaxBytes+1)}}, "and a stack may have at most 2 MiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := Pack(c.files); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Pack returned error %v, want an error that contains %q", err, c.want)
			}
		})
	}
	noise := make([]byte, MaxPacked+1)
	r := rand.NewChaCha8([32]byte{})
	_, _ = r.Read(noise) // this random source never returns an error
	var big *TooBig
	if _, err := Pack([]File{{Path: "a", Data: noise}}); !errors.As(err, &big) || big.Packed <= MaxPacked {
		t.Errorf("Pack of files that cannot be compressed returned %v, want TooBig with a size above MaxPacked", err)
	}
}

func TestUnpackRefuses(t *testing.T) {
	archive := func(headers ...*tar.Header) []byte {
		var out bytes.Buffer
		packed := gzip.NewWriter(&out)
		w := tar.NewWriter(packed)
		for _, h := range headers {
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(make([]byte, h.Size)); err != nil {
				t.Fatal(err)
			}
		}
		_ = w.Close()
		_ = packed.Close()
		return out.Bytes()
	}
	for _, c := range []struct {
		name   string
		packed []byte
		want   string
	}{
		{"bytes that are no archive", []byte("x"), "the archive:"},
		{"nothing", nil, "the archive:"},
		{"an archive with a symbolic link", archive(&tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "/etc/passwd"}), "is no regular file"},
		{"an archive with a path that leads out of the folder", archive(&tar.Header{Typeflag: tar.TypeReg, Name: "../a"}), "is no path in the stack's folder"},
		{"an archive whose files are too large", archive(&tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: MaxBytes + 1}), "more than 1000 files or 2 MiB"},
	} {
		if _, err := Unpack(c.packed); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("case %s: Unpack returned error %v, want an error that contains %q", c.name, err, c.want)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	packed, _ := Pack([]File{{Path: "a/b", Data: []byte("x")}})
	f.Add(packed)
	f.Fuzz(func(t *testing.T, packed []byte) {
		files, err := Unpack(packed)
		if err != nil {
			return
		}
		if _, err := Pack(files); err != nil {
			var big *TooBig
			if !errors.As(err, &big) {
				t.Fatal(err)
			}
		}
	})
}
