// Package bundle packs the files that belong to a Compose stack into one archive: a gzip stream of a tar
// file. The same files give the same bytes, because the entries are sorted and have neither time nor owner.
package bundle

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// The maximum sizes of a bundle.
const (
	// MaxFiles is the maximum number of files, MaxBytes the maximum sum of their sizes in bytes.
	MaxFiles = 1000
	MaxBytes = 2 << 20
	// MaxPacked is the maximum size of the archive, in bytes. An archive of this size still fits into one
	// command of the schedulers' Raft log after it was encrypted.
	MaxPacked = 512 << 10
	// maxPath is the maximum length of a path in bytes.
	maxPath = 512
)

// File is one regular file of a stack's folder. Of the file's mode only the executable bit is stored.
type File struct {
	Path       string // path relative to the stack's folder, with slashes
	Data       []byte
	Executable bool
}

// Hash adds the paths, contents and executable bits of files to h. It hashes the files and not the archive,
// because versions of the compression library may write different archives of the same files.
func Hash(h hash.Hash, files []File) {
	part := func(b []byte) {
		h.Write(binary.AppendUvarint(nil, uint64(len(b))))
		h.Write(b)
	}
	for _, f := range files {
		part([]byte(f.Path))
		part(f.Data)
		if f.Executable {
			part([]byte("x"))
		} else {
			part(nil)
		}
	}
}

// Check returns an error if a path does not name a file inside the stack's folder, or if there are too many
// or too large files. The error names the path.
func Check(files []File) error {
	if len(files) > MaxFiles {
		return fmt.Errorf("%d files, and a stack may have at most %d", len(files), MaxFiles)
	}
	seen, size := make(map[string]bool, len(files)), 0
	for _, f := range files {
		switch {
		case len(f.Path) > maxPath:
			return fmt.Errorf("path %.60q… has %d bytes, and a path may have at most %d", f.Path, len(f.Path), maxPath)
		case !fs.ValidPath(f.Path) || f.Path == "." || strings.ContainsAny(f.Path, "\\\x00"):
			return fmt.Errorf("%q is no path in the stack's folder: want a relative path with slashes, without . and ..", f.Path)
		case seen[f.Path]:
			return fmt.Errorf("%q is listed twice", f.Path)
		}
		seen[f.Path] = true
		size += len(f.Data)
	}
	for _, f := range files {
		for dir := path.Dir(f.Path); dir != "."; dir = path.Dir(dir) {
			if seen[dir] {
				return fmt.Errorf("%q is a file, but %q needs a folder of this name", dir, f.Path)
			}
		}
	}
	if size > MaxBytes {
		return fmt.Errorf("%d bytes in all files together, and a stack may have at most %d MiB", size, MaxBytes>>20)
	}
	return nil
}

// TooBig is the error of Pack if the archive would be larger than MaxPacked. Packed is its size in bytes.
type TooBig struct{ Packed int }

func (e *TooBig) Error() string {
	return fmt.Sprintf("%d KiB of compressed files, and a stack may have at most %d KiB", e.Packed>>10, MaxPacked>>10)
}

// Pack returns the archive of files. The order of files does not matter.
func Pack(files []File) ([]byte, error) {
	if err := Check(files); err != nil {
		return nil, err
	}
	files = slices.SortedFunc(slices.Values(files), func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	var out bytes.Buffer
	packed, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	w := tar.NewWriter(packed)
	for _, f := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.Path, Size: int64(len(f.Data)), Mode: 0o644, Format: tar.FormatPAX}
		if f.Executable {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("%q: %w", f.Path, err)
		}
		if _, err := w.Write(f.Data); err != nil {
			return nil, fmt.Errorf("%q: %w", f.Path, err)
		}
	}
	if err := errors.Join(w.Close(), packed.Close()); err != nil {
		return nil, err
	}
	if out.Len() > MaxPacked {
		return nil, &TooBig{out.Len()}
	}
	return out.Bytes(), nil
}

// Unpack returns the files of an archive, sorted by path. It stops reading at the maximum sizes of a bundle.
func Unpack(packed []byte) ([]File, error) {
	if len(packed) > MaxPacked {
		return nil, &TooBig{len(packed)}
	}
	raw, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("the archive: %w", err)
	}
	r := tar.NewReader(raw)
	var files []File
	left := int64(MaxBytes)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, Check(files)
		}
		if err != nil {
			return nil, fmt.Errorf("the archive: %w", err)
		}
		if h.Typeflag != tar.TypeReg {
			return nil, fmt.Errorf("the archive: %q is no regular file", h.Name)
		}
		if left -= h.Size; h.Size < 0 || left < 0 || len(files) >= MaxFiles {
			return nil, fmt.Errorf("the archive holds more than %d files or %d MiB", MaxFiles, MaxBytes>>20)
		}
		data := make([]byte, h.Size)
		if _, err := io.ReadFull(r, data); err != nil {
			return nil, fmt.Errorf("the archive: %q: %w", h.Name, err)
		}
		files = append(files, File{Path: h.Name, Data: data, Executable: h.Mode&0o111 != 0})
	}
}
