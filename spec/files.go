package spec

import (
	"encoding/hex"
	"fmt"
	"hash"

	commandv1 "github.com/persys/compute/api/command/v1"
	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/fsm"
	"github.com/persys/compute/stack/bundle"
)

// The files beside a Compose file are sent as an archive in the request (ApplyWorkloadRequest.files). The log
// stores each archive once, sealed, under a keyed digest of its content. The specification contains this
// digest and the list of the files.

// filesRule is the error for a specification that lists files although the request does not contain them.
const filesRule = "lists the files beside the Compose file, but the request does not contain them; " +
	"apply the Compose file with persysctl from its folder, or leave files, bundle and main_file out"

// DefaultMainFile is the name that a Compose file gets if its name is not known.
const DefaultMainFile = "compose.yaml"

// MainFile returns the file name of a stack's Compose file.
func MainFile(c *controlv1.ComposeSpec) string { return orElse(c.GetMainFile(), DefaultMainFile) }

// files checks the files that a request contains.
func (e *Errors) files(req *controlv1.ApplyWorkloadRequest) {
	c := req.GetSpec().GetCompose()
	const at = "spec.compose."
	switch {
	case len(c.GetFiles()) > 0:
		e.add(at+"files", filesRule, "")
	case c.GetBundle() != "":
		e.add(at+"bundle", filesRule, "")
	}
	if name := c.GetMainFile(); name != "" {
		if err := bundle.Check([]bundle.File{{Path: name}}); err != nil {
			e.add(at+"main_file", err.Error(), "")
		}
	}
	if len(req.GetFiles()) == 0 {
		return
	}
	if c == nil || isGit(c) {
		e.add("files", "is allowed only with an inline Compose stack", "")
		return
	}
	if _, err := bundle.Unpack(req.GetFiles()); err != nil {
		e.add("files", err.Error(), "")
	}
}

// withFiles lists the files of a request in its specification, and returns the bundle with the sealed archive
// for the log; nil if the request has no files.
func withFiles(c *controlv1.ComposeSpec, archive []byte, key Sealer) (*commandv1.Bundle, error) {
	if len(archive) == 0 {
		return nil, nil
	}
	if key == nil {
		return nil, ErrNoKey
	}
	files, err := bundle.Unpack(archive)
	if err != nil {
		return nil, Errors{{Field: "files", Rule: err.Error()}}
	}
	c.Files = nil
	for _, f := range files {
		c.Files = append(c.Files, &controlv1.StackFile{
			Path: f.Path, Size: int64(len(f.Data)), Executable: f.Executable, Digest: filesDigest(key.ContentHash(), []bundle.File{f})[:16],
		})
	}
	c.Bundle = filesDigest(key.ContentHash(), files)
	sealed, err := key.Seal(archive, filesContext(c.Bundle))
	if err != nil {
		return nil, fmt.Errorf("seal files: %w", err)
	}
	return &commandv1.Bundle{Digest: c.Bundle, Data: []byte(sealed)}, nil
}

// OpenFiles unseals a stored bundle and returns its archive.
func OpenFiles(b *fsm.Bundle, key Sealer) ([]byte, error) {
	if key == nil {
		return nil, ErrNoKey
	}
	archive, err := key.Open(string(b.Data), filesContext(b.Digest))
	if err != nil {
		return nil, fmt.Errorf("unseal the files of the stack: %w", err)
	}
	return archive, nil
}

func filesContext(digest string) []byte { return []byte("bundle\x00" + digest) }

// filesDigest returns the digest of the files of a stack. h must be a keyed hash.
func filesDigest(h hash.Hash, files []bundle.File) string {
	h.Write([]byte("persys files 1\n"))
	bundle.Hash(h, files)
	return hex.EncodeToString(h.Sum(nil))
}
