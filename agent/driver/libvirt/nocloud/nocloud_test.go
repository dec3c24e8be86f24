package nocloud

import (
	"encoding/base64"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"strings"
	"testing"
)

// In a combined document each part gets the MIME type that belongs to its own first line. With a wrong type,
// cloud-init would pass the part to the wrong handler, which would ignore it.
func TestPartsAreLabelledByTheirFirstLine(t *testing.T) {
	for part, want := range map[string]string{
		"#!/bin/sh\necho hi\n":                            "text/x-shellscript",
		"#cloud-config\na: b\n":                           "text/cloud-config",
		"#cloud-config-archive\n- a\n":                    "text/cloud-config-archive",
		"#cloud-config-jsonp\n[]\n":                       "text/cloud-config-jsonp",
		"#include\nhttps://example.com/a\n":               "text/x-include-url",
		"#include-once\nhttps://example.com/a\n":          "text/x-include-once-url",
		"#cloud-boothook\n#!/bin/sh\n":                    "text/cloud-boothook",
		"#part-handler\ndef list_types():\n":              "text/part-handler",
		"## template: jinja\n#cloud-config\na: {{ b }}\n": "text/jinja2",
		"\n  #Include\nhttps://example.com/a\n":           "text/x-include-url",
		"packages: [a]\n":                                 "text/cloud-config",
	} {
		text, err := Together("boundary", "#cloud-config\nusers: []\n", part)
		if err != nil {
			t.Fatal(err)
		}
		msg, err := mail.ReadMessage(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		_, params, err := mime.ParseMediaType(msg.Header.Get("Content-Type"))
		if err != nil {
			t.Fatal(err)
		}
		r := multipart.NewReader(msg.Body, params["boundary"])
		for i, c := range []struct{ text, kind string }{{"#cloud-config\nusers: []\n", "text/cloud-config"}, {part, want}} {
			p, err := r.NextPart()
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(p)
			if err != nil {
				t.Fatal(err)
			}
			if kind := p.Header.Get("Content-Type"); kind != c.kind || string(body) != c.text {
				t.Errorf("part %d of the combined document has the type %s and the text %q; want %s and %q", i, kind, body, c.kind, c.text)
			}
		}
	}
}

// TestPlainIgnoresCase: like cloud-init, Plain recognizes the first line of a document in upper and lower
// case.
func TestPlainIgnoresCase(t *testing.T) {
	for _, text := range []string{"#cloud-config\n", "#Cloud-Config\n", "mime-version: 1.0\n", "Content-type: text/plain\n", "#!/bin/sh\n"} {
		if got := Plain(base64.StdEncoding.EncodeToString([]byte(text))); got != text {
			t.Errorf("Plain of the base64 of %q returned %q, want the decoded text", text, got)
		}
	}
	if text := base64.StdEncoding.EncodeToString([]byte("packages: []\n")); Plain(text) != text {
		t.Error("Plain decoded base64 whose text cloud-init does not recognise, want it unchanged")
	}
}
