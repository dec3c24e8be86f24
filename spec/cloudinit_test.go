package spec

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
)

// mimeOf returns a MIME message with these parts.
func mimeOf(parts ...string) string {
	text := "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"b\"\n\n"
	for _, p := range parts {
		text += "--b\n" + p + "\n"
	}
	return text + "--b--\n"
}

func encoded(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// TestFormsOfUserData: each form of user data that cloud-init knows is accepted if the guest can use it, and
// refused otherwise.
func TestFormsOfUserData(t *testing.T) {
	const config = "Content-Type: text/cloud-config\n\npackages: [vim]\n"
	var zipped bytes.Buffer
	deep := config
	for i := range 4 {
		deep = fmt.Sprintf("Content-Type: multipart/mixed; boundary=n%d\n\n--n%d\n%s\n--n%d--\n", i, i, deep, i)
	}
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write([]byte("#cloud-config\n"))
	_ = z.Close()
	for name, c := range map[string]struct{ text, want string }{
		"a script":                                {"#!/usr/bin/env python3\nprint()\n", ""},
		"a script with Windows line ends":         {"#!/bin/sh\r\necho\r\n", `no guest has the interpreter "/bin/sh\r"`},
		"a script without an interpreter":         {"#!\necho\n", "names no interpreter"},
		"a configuration with Windows line ends":  {"#cloud-config\r\npackages: [vim]\r\n", ""},
		"a configuration with a remark":           {"#cloud-config # by hand\n- a\n", "must be a mapping in YAML or JSON (line 2)"},
		"a configuration with tabs":               {"#cloud-config\nusers:\n\t- a\n", "line 3"},
		"a configuration in JSON":                 {"#cloud-config\n{\"packages\": [\"vim\"]}\n", ""},
		"an archive":                              {"#cloud-config-archive\n- {type: text/cloud-config, content: x}\n", ""},
		"an archive that is no list":              {"#cloud-config-archive\ntype: text/cloud-config\n", "must be a list"},
		"a patch":                                 {"#cloud-config-jsonp\n[{\"op\": \"add\", \"path\": \"/runcmd\", \"value\": []}]\n", ""},
		"an include":                              {"#include-once\n# two of them\nhttps://example.org/a\nhttp://example.org/b\n", ""},
		"an include with a URL on its first line": {"#include https://example.org/a\n", ""},
		"an include without a URL":                {"#include\n\n", "without a URL"},
		"an include of a word that is no URL":     {"#include\nhttps://example.org/a\nmy-config\n", `line 3: "my-config" is no URL`},
		"a boothook":                              {"#cloud-boothook\n#!/bin/sh\necho\n", ""},
		"a boothook without a script":             {"#cloud-boothook\necho\n", "must begin with #!"},
		"a part handler":                          {"#part-handler\ndef list_types():\n  return ['text/x']\ndef handle_part(data, ctype, filename, payload):\n  pass\n", ""},
		"a part handler without its functions":    {"#part-handler\nprint()\n", "list_types and handle_part"},
		"a template":                              {"## template: jinja\n#cloud-config\na: {{ v1.region }}\n", ""},
		"a template without content":              {"## template: jinja\npackages: [vim]\n", "is a template without content"},
		"a template in another language":          {"## template: mako\n#cloud-config\n", "must begin with a line"},
		"base64 of a configuration":               {encoded("#cloud-config\npackages: [vim]\n"), ""},
		"base64 with a line break":                {encoded("#cloud-config\npackages: [vim")[:20] + "\n" + encoded("#cloud-config\npackages: [vim")[20:] + "\n", "is not valid YAML"},
		"base64 of gzip":                          {base64.StdEncoding.EncodeToString(zipped.Bytes()), "is compressed with gzip"},
		"base64 of NUL":                           {encoded("#cloud-config\na: \x00\n"), "line 2:4: contains a NUL byte"},
		"base64 of Latin-1":                       {encoded("#cloud-config\na: caf\xe9\n"), "line 2:7: is not UTF-8"},
		"base64 of an unknown kind of text":       {encoded("packages: [vim]\n"), "must begin with a line"},
		"base64 of base64":                        {encoded(encoded("#cloud-config\n")), "must begin with a line"},
		"MIME":                                    {mimeOf(config, "Content-Type: text/x-shellscript\n\n#!/bin/sh\n"), ""},
		"MIME with Windows line ends":             {strings.ReplaceAll(mimeOf(config), "\n", "\r\n"), ""},
		"MIME of one part":                        {"Content-Type: text/cloud-config\nMIME-Version: 1.0\n\npackages: [vim]\n", ""},
		"MIME in MIME":                            {mimeOf("Content-Type: multipart/mixed; boundary=c\n\n--c\n" + config + "\n--c--\n"), ""},
		"MIME with base64":                        {mimeOf("Content-Type: text/cloud-config\nContent-Transfer-Encoding: base64\n\n" + encoded("packages: [vim]\n")), ""},
		"MIME with a type for a part handler":     {mimeOf("Content-Type: text/x-mine\n\nanything\n"), ""},
		"MIME from a mailbox":                     {"From nobody Fri Jan 11 07:00:00 2008\n" + mimeOf(config), ""},
		"MIME without MIME-Version":               {strings.TrimPrefix(mimeOf(config), "MIME-Version: 1.0\n"), "without the header MIME-Version"},
		"MIME after an empty line":                {"\n" + mimeOf(config), "white space before its first MIME header"},
		"MIME without a boundary":                 {strings.ReplaceAll(mimeOf(config), "; boundary=\"b\"", ""), "names no boundary"},
		"MIME without parts":                      {mimeOf(), "without parts"},
		"MIME with another boundary":              {strings.ReplaceAll(mimeOf(config), "--b", "--c"), "no line --b begins one"},
		"MIME that is cut off":                    {strings.TrimSuffix(mimeOf(config, config), "--b--\n"), "the last line must be --b--"},
		"MIME with a wrong configuration":         {mimeOf(config, "Content-Type: text/cloud-config\n\n- a\n"), "part 2 (text/cloud-config): must be a mapping"},
		"MIME with a script without #!":           {mimeOf("Content-Type: text/x-shellscript\n\necho\n"), "part 1 (text/x-shellscript): must begin with #!"},
		"MIME with text":                          {mimeOf("Content-Type: text/plain\n\nhello\n"), "part 1 (text/plain): must begin with a line"},
		"MIME with wrong base64":                  {mimeOf("Content-Type: text/cloud-config\nContent-Transfer-Encoding: base64\n\n%%%\n"), "cannot be decoded"},
		"MIME in four levels":                     {"MIME-Version: 1.0\n" + deep, "more than 3 levels"},
		"headers without an end":                  {"MIME-Version: 1.0\nContent-Type: text/plain", "must begin with a line"},
	} {
		if got := cloudInitRule("user_data", c.text); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("user data of the case \"%s\" breaks the rule %q, want %q", name, got, c.want)
		}
	}
	if got := cloudInitRule("vendor_data", encoded("#cloud-config\n")); !strings.Contains(got, "must begin with a line") {
		t.Errorf("base64 in vendor data, which agents do not decode, must be refused, but the rule is %q", got)
	}
}

// TestCloudInitInFiles: an error about a cloud-init file names the line of the specification that refers to
// the file, and the line in the file.
func TestCloudInitInFiles(t *testing.T) {
	const file = "id: v\nvm:\n  cpus: 2\n  memory: 1Gi\n  image: /x.qcow2\n  disks: [{size: 1Gi}]\n  cloud_init: {user_data_file: init.yaml}\n"
	for name, c := range map[string]struct{ text, want string }{
		"a configuration":                     {"#cloud-config\npackages: [vim]\n", ""},
		"Windows line ends":                   {"#cloud-config\r\npackages: [vim]\r\n", ""},
		"a byte order mark":                   {"\ufeff#cloud-config\n", "begins with a byte order mark"},
		"Latin-1":                             {"#cloud-config\na: caf\xe9\n", "line 2:7 of the file: is not UTF-8"},
		"UTF-16":                              {"\xff\xfe#\x00", "line 1:1 of the file: is UTF-16"},
		"a NUL byte":                          {"#cloud-config\na: \x00\n", "line 2:4 of the file: contains a NUL byte"},
		"gzip":                                {"\x1f\x8b\x08", "is compressed with gzip"},
		"the same key twice":                  {"#cloud-config\nusers: []\nusers: [a]\n", "line 3"},
		"no first line that cloud-init knows": {"packages: [vim]\n", "must begin with a line"},
		"more bytes than the limit":           {"#cloud-config\n#" + strings.Repeat("x", maxCloudInit), "at most 262144"},
	} {
		docs, err := Documents("vm.yaml", []byte(file), Options{ReadFile: func(string) ([]byte, error) { return []byte(c.text), nil }})
		text := ""
		if err != nil {
			text = err.Error()
		}
		if err == nil {
			if _, err = Prepare(docs[0].Request, nil); err != nil && err != ErrNoKey {
				text = docs[0].Locate(err.Error())
			}
		}
		if (text == "") != (c.want == "") || !strings.Contains(text, c.want) || text != "" && !strings.HasPrefix(text, "vm.yaml:7:") {
			t.Errorf("a cloud-init file with %s: the error is %q, want %q at line 7 of the specification", name, text, c.want)
		}
	}
}

func TestCloudInitThatTheGuestWouldIgnore(t *testing.T) {
	for _, c := range []struct{ part, text, want string }{
		{"user_data", "#cloud-config\nusers: []\n", ""},
		{"user_data", "\n  #cloud-config\nusers: []\n", ""},
		{"user_data", "#cloud-config\n", ""},
		{"user_data", "#!/bin/sh\necho hello\n", ""},
		{"user_data", "#include\nhttps://example.org/x\n", ""},
		{"user_data", "## template: jinja\n#cloud-config\na: {{ b }}\n", ""},
		{"user_data", "Content-Type: multipart/mixed; boundary=x\n\n--x--\n", "without the header MIME-Version"},
		{"user_data", "I2Nsb3VkLWNvbmZpZwp1c2VyczogW10K", ""},                         // base64 of #cloud-config
		{"user_data", "H4sIAAAAAAAAA1POyS9N0U3Oz0vLTOcCAM5l2ZIOAAAA", "gzip"},         // user data that was compressed with gzip and then encoded as base64
		{"user_data", "\x1f\x8b\x08", "gzip"},                                         //
		{"user_data", "\ufeff#cloud-config\n", "byte order mark"},                     //
		{"user_data", "packages: [vim]\n", "must begin with a line"},                  //
		{"user_data", "# cloud-config\npackages: []\n", "did you mean #cloud-config"}, //
		{"user_data", "#cloud_config\npackages: []\n", "did you mean #cloud-config"},
		{"user_data", "---\n#cloud-config\n", "must begin with a line"},
		{"user_data", "#cloud-config\n- a\n", "must be a mapping in YAML or JSON (line 2)"},
		{"user_data", "#cloud-config\na: [\n", "is not valid YAML"},
		{"vendor_data", "hello", "must begin with a line"},
		{"meta_data", "instance-id: a\n", ""},
		{"meta_data", `{"instance-id": "a"}`, ""},
		{"meta_data", "- a\n", "must be a mapping"},
		{"network_config", "version: 2\n", ""},
		{"network_config", "eth0", "must be a mapping"},
		{"network_config", "network: {version: 1, config: []}\n", ""},
		{"network_config", "network: {config: disabled}\n", ""},
		{"network_config", "config: disabled\n", ""},
		{"network_config", "version: 3\n", "must have version: 1 or version: 2"},
		{"network_config", "ethernets: {}\n", "must have version: 1 or version: 2"},
		{"network_config", "# nothing\n", "must have version"},
		{"user_data", "#cloud-config\nusers: []\nusers: [a]\n", `line 3: mapping key "users" already defined at line 2`},
		{"user_data", "#cloud-config\na: &x {b: c}\nd: {<<: *x, e: !!str 5}\n", ""},
		{"meta_data", "a: b\na: c\n", "already defined"},
		{"user_data", " \n", ""},
	} {
		if got := cloudInitRule(c.part, c.text); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("the cloud-init document %s with text %q breaks the rule %q, want the rule %q", c.part, c.text, got, c.want)
		}
	}
}
