package spec

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"net/textproto"
	"net/url"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/persys/compute/engine"
)

// cloudInitRule returns why cloud-init would ignore one of its documents; "" if it would not. part is the
// name of the document, such as user_data.
func cloudInitRule(part, text string) string {
	if strings.TrimSpace(text) == "" {
		return ""
	}
	switch part {
	case "meta_data":
		return mappingRule(text)
	case "network_config":
		if rule := mappingRule(text); rule != "" {
			return rule
		}
		return networkRule(text)
	}
	if part == "user_data" {
		text = decodedUserData(text)
	}
	return userDataRule(text, 0)
}

// userDataRule returns why cloud-init would ignore a text of user data or vendor data; "" if it would not.
// depth counts the MIME messages around the text.
func userDataRule(given string, depth int) string {
	text := strings.TrimLeft(given, " \t\r\n")
	switch {
	case strings.HasPrefix(text, "\x1f\x8b"):
		return "is compressed with gzip: give the plain text"
	case strings.HasPrefix(text, "\ufeff"):
		return "begins with a byte order mark, which cloud-init does not take: save the file as UTF-8 without it"
	}
	if line, column, rule := engine.NotText([]byte(text)); rule != "" { // check only text that was decoded here; text that came in plain form was checked before
		return fmt.Sprintf("line %d:%d: %s", line, column, rule)
	}
	first, rest, _ := strings.Cut(text, "\n")
	line := strings.TrimRight(first, " \t\r")
	lower := strings.ToLower(line)
	i := slices.IndexFunc(userDataHeads(), func(head string) bool { return strings.HasPrefix(lower, head) })
	if i < 0 {
		rule := "must begin with a line that cloud-init knows: #cloud-config, #!/bin/sh, #include, #cloud-boothook, #part-handler, ## template: jinja, or a MIME header"
		if word := strings.Trim(strings.NewReplacer("_", "-", " ", "").Replace(lower), "-"); strings.HasPrefix(word, "#cloud") {
			rule += "; did you mean #cloud-config?"
		}
		return rule
	}
	switch head := userDataHeads()[i]; head {
	case "#cloud-config-archive", "#cloud-config-jsonp":
		return listRule(text)
	case "#cloud-config":
		return mappingRule(text)
	case "#!":
		return scriptRule(first)
	case "#cloud-boothook":
		script, _, _ := strings.Cut(strings.TrimLeft(rest, " \t\r\n"), "\n")
		if !strings.HasPrefix(script, "#!") {
			return "is a boothook without a script: the line after #cloud-boothook must begin with #!, such as #!/bin/sh"
		}
		return scriptRule(script)
	case "#include", "#include-once":
		return includeRule(text)
	case "#part-handler":
		if !strings.Contains(rest, "def list_types") || !strings.Contains(rest, "def handle_part") {
			return "is a part handler without the Python functions list_types and handle_part, which cloud-init calls"
		}
	case "## template: jinja":
		next := strings.ToLower(strings.TrimLeft(rest, " \t\r\n"))
		if !strings.HasPrefix(next, "#") && !strings.HasPrefix(next, "{") {
			return "is a template without content: the line after ## template: jinja must be one that cloud-init knows, such as #cloud-config"
		}
	case "content-type:", "mime-version:", "from ":
		if len(text) < len(given) && depth == 0 {
			return "has white space before its first MIME header, so cloud-init would read no header: remove it"
		}
		return mimeRule(text, depth)
	}
	return ""
}

// userDataHeads returns the beginnings, in lower case, by which cloud-init recognises user data and vendor
// data. If one beginning is a prefix of another, the longer one comes first.
func userDataHeads() []string {
	return []string{
		"#cloud-config-archive", "#cloud-config-jsonp", "#cloud-config", "#!", "#include-once", "#include", "#cloud-boothook",
		"#part-handler", "#upstart-job", "## template: jinja", "content-type:", "mime-version:", "from ",
	}
}

// scriptRule returns why a kernel could not run a script that has this first line; "" if it could.
func scriptRule(line string) string {
	switch {
	case strings.HasSuffix(line, "\r"):
		return fmt.Sprintf("has Windows line ends, and no guest has the interpreter %q: save the script with \\n", strings.TrimPrefix(line, "#!"))
	case strings.TrimSpace(strings.TrimPrefix(line, "#!")) == "":
		return "names no interpreter behind #!: write #!/bin/sh"
	}
	return ""
}

// includeRule returns why cloud-init could not fetch an include file; "" if it could.
func includeRule(text string) string {
	found, number := false, 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		for _, head := range []string{"#include-once", "#include"} {
			if strings.HasPrefix(strings.ToLower(line), head) {
				line = strings.TrimSpace(line[len(head):])
				break
			}
		}
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		u, err := url.Parse(line)
		if err != nil || !slices.Contains([]string{"http", "https", "ftp", "ftps", "file"}, u.Scheme) && !strings.HasPrefix(line, "/") {
			return fmt.Sprintf("line %d: %.80q is no URL: every line of an #include must be a URL", number, line)
		}
		found = true
	}
	if !found {
		return "is an #include without a URL: write one URL on each line after it"
	}
	return ""
}

// maxMIME is the maximum depth to which MIME messages may be nested.
const maxMIME = 3

// mimeRule returns why cloud-init would ignore a MIME message or one of its parts; "" if it would not. Cloud-init
// treats a text as MIME only if its first 4 KiB contain the header MIME-Version.
func mimeRule(text string, depth int) string {
	if !strings.Contains(strings.ToLower(text[:min(len(text), 4<<10)]), "mime-version:") {
		return "is MIME without the header MIME-Version: 1.0, so cloud-init ignores it"
	}
	if strings.HasPrefix(text, "From ") { // skip the first line of a message from a mailbox
		_, text, _ = strings.Cut(text, "\n")
	}
	m, err := mail.ReadMessage(strings.NewReader(text))
	if err != nil {
		return "has MIME headers that cannot be read: " + err.Error()
	}
	return partRule(textproto.MIMEHeader(m.Header), m.Body, depth+1)
}

// partRule returns why cloud-init would ignore a part of a MIME message; "" if it would not. Parts of unknown
// types are accepted, because they are for part handlers.
func partRule(header textproto.MIMEHeader, body io.Reader, depth int) string {
	kind, parameters := "text/plain", map[string]string{}
	if given := header.Get("Content-Type"); given != "" {
		var err error
		if kind, parameters, err = mime.ParseMediaType(given); err != nil {
			return fmt.Sprintf("has a Content-Type %.80q that cannot be read: %v", given, err)
		}
	}
	if strings.HasPrefix(kind, "multipart/") {
		return partsRule(parameters["boundary"], body, depth)
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return err.Error()
	}
	switch strings.ToLower(strings.TrimSpace(header.Get("Content-Transfer-Encoding"))) {
	case "base64":
		data, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(string(data)), ""))
	case "quoted-printable":
		data, err = io.ReadAll(quotedprintable.NewReader(bytes.NewReader(data)))
	}
	if err != nil {
		return "cannot be decoded: " + err.Error()
	}
	text := string(data)
	switch head := strings.TrimLeft(text, " \t\r\n"); {
	case kind == "text/cloud-config":
		return mappingRule(text)
	case kind == "text/cloud-config-archive", kind == "text/cloud-config-jsonp":
		return listRule(text)
	case kind == "text/x-include-url", kind == "text/x-include-once-url":
		return includeRule(text)
	case kind == "text/x-shellscript" && !strings.HasPrefix(head, "#"):
		return "must begin with #!, such as #!/bin/sh"
	case kind == "text/plain", kind == "text/x-not-multipart", kind == "text/x-shellscript":
		if depth > maxMIME {
			return fmt.Sprintf("is MIME in more than %d levels", maxMIME)
		}
		return userDataRule(text, depth)
	}
	return ""
}

// partsRule returns why cloud-init would ignore one of the parts of a MIME message; "" if it would not.
func partsRule(boundary string, body io.Reader, depth int) string {
	switch {
	case boundary == "":
		return "is MIME in several parts, and its Content-Type names no boundary"
	case depth > maxMIME:
		return fmt.Sprintf("is MIME in more than %d levels", maxMIME)
	}
	parts := multipart.NewReader(body, boundary)
	for n := 1; ; n++ {
		part, err := parts.NextRawPart()
		switch {
		case err == io.EOF && n > 1:
			return ""
		case err == io.EOF || err != nil && n == 1 && strings.Contains(err.Error(), "EOF"):
			return fmt.Sprintf("is MIME without parts: no line --%.70s begins one", boundary)
		case err != nil && strings.Contains(err.Error(), "EOF"):
			return fmt.Sprintf("is MIME that is cut off: the last line must be --%.70s--", boundary)
		case err != nil:
			return fmt.Sprintf("part %d has MIME headers that cannot be read: %v", n, err)
		}
		rule := partRule(part.Header, part, depth+1)
		if strings.HasSuffix(rule, io.ErrUnexpectedEOF.Error()) {
			return fmt.Sprintf("is MIME that is cut off: the last line must be --%.70s--", boundary)
		}
		if rule != "" {
			return fmt.Sprintf("part %d (%.80s): %s", n, cmp.Or(part.Header.Get("Content-Type"), "text/plain"), rule)
		}
	}
}

// decodedUserData decodes base64 as agents do: only if the decoded text begins with a line that cloud-init
// knows or with the gzip header.
func decodedUserData(text string) string {
	raw, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil || len(raw) == 0 {
		return text
	}
	head := strings.ToLower(string(raw[:min(len(raw), 64)]))
	if bytes.HasPrefix(raw, []byte("\x1f\x8b")) || slices.ContainsFunc(userDataHeads(), func(h string) bool { return strings.HasPrefix(head, h) }) {
		return string(raw)
	}
	return text
}

// listRule returns why a text is not a list in YAML or JSON; "" if it is a list.
func listRule(text string) string {
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		return "is not valid YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")
	}
	if len(doc.Content) == 0 || doc.Content[0].Kind != yaml.SequenceNode {
		return "must be a list in YAML or JSON"
	}
	return ""
}

// mappingRule returns the rule that a text breaks if it is not a valid mapping in YAML or JSON; "" if it is
// one.
func mappingRule(text string) string {
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		return "is not valid YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")
	}
	if len(doc.Content) == 0 { // nil: the text has only comments
		return ""
	}
	if doc.Content[0].Kind != yaml.MappingNode {
		return fmt.Sprintf("must be a mapping in YAML or JSON (line %d)", doc.Content[0].Line)
	}
	var values any
	if err := doc.Decode(&values); err != nil { // an error here means that a key is set twice
		return "is not valid: " + strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), "unmarshal errors:"))
	}
	return ""
}

// networkRule returns why cloud-init would ignore a network configuration that is a mapping; "" if it would
// not.
func networkRule(text string) string {
	type config struct {
		Version any
		Config  any
	}
	var doc struct {
		config  `yaml:",inline"`
		Network *config
	}
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		return "is not valid: " + strings.TrimPrefix(err.Error(), "yaml: ")
	}
	if doc.Network != nil {
		doc.config = *doc.Network
	}
	if v := fmt.Sprint(doc.Version); doc.Config == "disabled" || v == "1" || v == "2" {
		return ""
	}
	return "must have version: 1 or version: 2, without which cloud-init ignores it"
}
