// Package nocloud makes the input of cloud-init: combined user-data documents, the network configuration, and
// the image of a NoCloud seed, a disk from which cloud-init reads its input.
package nocloud

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/textproto"
	"strings"

	"github.com/kdomanski/iso9660"
	"go.yaml.in/yaml/v3"
)

// File is one file of a NoCloud seed, the disk image from which cloud-init reads its input.
type File struct{ Name, Text string }

// kinds maps the first line of a document to its MIME type in a multipart archive. If one first line is a
// prefix of another, the longer one comes first in the list.
var kinds = []struct{ head, kind string }{
	{"#cloud-config-archive", "text/cloud-config-archive"},
	{"#cloud-config-jsonp", "text/cloud-config-jsonp"},
	{"#cloud-config", "text/cloud-config"},
	{"#include-once", "text/x-include-once-url"},
	{"#include", "text/x-include-url"},
	{"#cloud-boothook", "text/cloud-boothook"},
	{"#part-handler", "text/part-handler"},
	{"## template: jinja", "text/jinja2"},
	{"#!", "text/x-shellscript"},
}

// kindOf returns the MIME type of a cloud-init document. Like cloud-init it skips white space before the
// first line and ignores case.
func kindOf(text string) string {
	line, _, _ := strings.Cut(strings.TrimLeft(text, " \t\r\n"), "\n")
	line = strings.ToLower(line)
	for _, k := range kinds {
		if strings.HasPrefix(line, k.head) {
			return k.kind
		}
	}
	return "text/cloud-config"
}

// Together combines several documents into one MIME archive for cloud-init.
func Together(boundary string, parts ...string) (string, error) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	if err := w.SetBoundary(boundary); err != nil {
		return "", err
	}
	fmt.Fprintf(&b, "Content-Type: multipart/mixed; boundary=%q\nMIME-Version: 1.0\n\n", w.Boundary())
	for _, p := range parts {
		out, err := w.CreatePart(textproto.MIMEHeader{"Content-Type": {kindOf(p)}})
		if err == nil {
			_, err = io.WriteString(out, p)
		}
		if err != nil {
			return "", err
		}
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	return b.String(), nil
}

// Image returns the ISO image of a seed (the disk from which cloud-init reads its input), and a checksum over
// the seed's files. The checksum shows whether two seeds are equal. The ISO images cannot show it, because each
// contains its creation time.
func Image(files []File) (iso []byte, checksum string, err error) {
	w, err := iso9660.NewWriter()
	if err != nil {
		return nil, "", err
	}
	defer func() {
		if e := w.Cleanup(); err == nil {
			err = e
		}
	}()
	sum := sha256.New()
	for _, f := range files {
		fmt.Fprintf(sum, "%s %d\n%s", f.Name, len(f.Text), f.Text)
		if err := w.AddFile(strings.NewReader(f.Text), f.Name); err != nil {
			return nil, "", err
		}
	}
	var b bytes.Buffer
	if err := w.WriteTo(&b, "cidata"); err != nil {
		return nil, "", err
	}
	return b.Bytes(), hex.EncodeToString(sum.Sum(nil)), nil
}

// Plain decodes cloud-init documents that some tools send as base64. It decodes s only if the result begins
// with a line that cloud-init knows, and returns any other text unchanged.
func Plain(s string) string {
	raw, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil || len(raw) == 0 {
		return s
	}
	first := strings.ToLower(string(raw[:min(len(raw), 64)]))
	for _, head := range []string{"#cloud-config", "#!", "#include", "#cloud-boothook", "#part-handler", "#upstart-job", "## template:", "content-type:", "mime-version:", "from "} {
		if strings.HasPrefix(first, head) {
			return string(raw)
		}
	}
	return s
}

// MetaData adds the instance id and the host name to meta-data that lack them.
func MetaData(text, instance, name string) (string, error) {
	given := map[string]any{}
	if text != "" {
		if err := yaml.Unmarshal([]byte(text), &given); err != nil {
			return "", fmt.Errorf("not a mapping in JSON or YAML: %w", err)
		}
		if given == nil {
			return "", errors.New("not a mapping in JSON or YAML: null")
		}
	}
	_, hasID := given["instance-id"]
	_, hasHost := given["local-hostname"]
	_, hasName := given["hostname"]
	if text != "" && hasID && (hasHost || hasName) {
		return text, nil
	}
	if !hasID {
		given["instance-id"] = instance
	}
	if !hasHost && !hasName {
		given["local-hostname"] = Hostname(name)
	}
	out, err := yaml.Marshal(given)
	return string(out), err
}

// Hostname turns a name into a valid host name: lower case, at most 63 characters, and '-' for each character
// that a host name must not contain.
func Hostname(name string) string {
	name = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, name)
	if len(name) > 63 {
		name = name[:63]
	}
	return strings.Trim(name, "-.")
}
