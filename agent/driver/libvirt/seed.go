package libvirt

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"mime/multipart"
	"net/netip"
	"net/textproto"
	"strings"

	"github.com/kdomanski/iso9660"
	"github.com/persys/compute/agent/driver"
	agentv1 "github.com/persys/compute/api/agent/v1"
	"gopkg.in/yaml.v3"
)

// maxSeed bounds each document of cloud-init and all of them together, in bytes
// (contract/semantics.md, section 12).
const maxSeed = 256 << 10

// seedPlan is the NoCloud seed except for what only the machine's networks tell.
type seedPlan struct {
	user, meta, network, vendor string
}

// seedFile is one file of the seed.
type seedFile struct{ name, text string }

func badSeed(format string, args ...any) error {
	return driver.Errorf(driver.CloudInitInvalid, "ensure", "cloud-init-invalid: "+format, args...)
}

// planSeed reads what a specification says to cloud-init; nil when it wants no seed: it says nothing,
// and its disk is not made from an image, so that nobody waits for one.
func planSeed(id driver.ID, vm *agentv1.VMSpec) (*seedPlan, error) {
	c := vm.GetCloudInitConfig()
	static := false
	for _, n := range vm.Networks {
		static = static || n.IpAddress != ""
	}
	if vm.CloudInit == "" && c.GetUserData() == "" && c.GetMetaData() == "" && c.GetNetworkConfig() == "" &&
		c.GetVendorData() == "" && vm.Login == nil && vm.OsImage == "" && !static {
		return nil, nil
	}
	// user_data of the message wins over the text (contract/wire-agent.md).
	user := c.GetUserData()
	if user == "" {
		user = vm.CloudInit
	}
	s := &seedPlan{user: plainUserData(user), meta: c.GetMetaData(), network: c.GetNetworkConfig(), vendor: c.GetVendorData()}
	total := 0
	for _, part := range []seedFile{{"user_data", s.user}, {"meta_data", s.meta}, {"network_config", s.network}, {"vendor_data", s.vendor}} {
		if total += len(part.text); len(part.text) > maxSeed {
			return nil, badSeed("%s is %d bytes, at most %d", part.name, len(part.text), maxSeed)
		}
		if strings.ContainsRune(part.text, 0) {
			return nil, badSeed("%s holds a NUL byte", part.name)
		}
	}
	if total > maxSeed {
		return nil, badSeed("all parts together are %d bytes, at most %d", total, maxSeed)
	}
	if s.user == "" {
		s.user = "#cloud-config\n{}\n"
	}
	var err error
	if s.vendor, err = withLogin(s.vendor, vm.Login); err != nil {
		return nil, err
	}
	name := vm.Name
	if name == "" {
		name = string(id)
	}
	if s.meta, err = metaData(s, string(id), name); err != nil {
		return nil, err
	}
	if s.network != "" {
		var any map[string]any
		if err := yaml.Unmarshal([]byte(s.network), &any); err != nil {
			return nil, badSeed("network_config is not a YAML mapping: %v", err)
		}
	}
	return s, nil
}

// plainUserData undoes base64, which some tools send: text that is base64 of something that cloud-init
// knows by its first line. Everything else is taken as it is.
func plainUserData(s string) string {
	raw, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil || len(raw) == 0 {
		return s
	}
	for _, head := range []string{"#cloud-config", "#!", "#include", "#cloud-boothook", "#part-handler", "## template:", "Content-Type:", "MIME-Version:", "From "} {
		if bytes.HasPrefix(raw, []byte(head)) {
			return string(raw)
		}
	}
	return s
}

// metaData completes meta-data. Cloud-init applies a seed once for each instance id, so the id follows
// what there is to apply: another specification that says the same to cloud-init is the same instance.
func metaData(s *seedPlan, id, name string) (string, error) {
	given := map[string]any{}
	if s.meta != "" {
		if err := yaml.Unmarshal([]byte(s.meta), &given); err != nil || given == nil {
			return "", badSeed("meta_data is not a mapping in JSON or YAML: %v", err)
		}
	}
	_, hasID := given["instance-id"]
	_, hasHost := given["local-hostname"]
	_, hasName := given["hostname"]
	if s.meta != "" && hasID && (hasHost || hasName) {
		return s.meta, nil
	}
	if !hasID {
		given["instance-id"] = id + "-" + tag(s.user+"\x00"+s.vendor+"\x00"+s.network)
	}
	if !hasHost && !hasName {
		given["local-hostname"] = hostname(name)
	}
	out, err := yaml.Marshal(given)
	if err != nil {
		return "", badSeed("meta_data: %v", err)
	}
	return string(out), nil
}

// hostname makes a name one that hosts may have.
func hostname(name string) string {
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

// withLogin adds an account to vendor-data, over which the user-data of the workload's author wins.
func withLogin(vendor string, login *agentv1.VMLogin) (string, error) {
	if login == nil {
		return vendor, nil
	}
	if login.User == "" || login.Password == "" && len(login.SshAuthorizedKeys) == 0 {
		return "", invalid("vm.login: wants a user, and a password or ssh_authorized_keys")
	}
	type account struct {
		Name   string   `yaml:"name"`
		Shell  string   `yaml:"shell"`
		Sudo   string   `yaml:"sudo"`
		Lock   bool     `yaml:"lock_passwd"`
		Passwd string   `yaml:"plain_text_passwd,omitempty"`
		Keys   []string `yaml:"ssh_authorized_keys,omitempty"`
	}
	doc := struct {
		Users  []any           `yaml:"users"`
		SSH    bool            `yaml:"ssh_pwauth,omitempty"`
		Expire map[string]bool `yaml:"chpasswd,omitempty"`
	}{Users: []any{"default", account{
		Name: login.User, Shell: "/bin/bash", Sudo: "ALL=(ALL) NOPASSWD:ALL", Lock: login.Password == "",
		Passwd: login.Password, Keys: login.SshAuthorizedKeys,
	}}}
	if login.Password != "" {
		doc.SSH, doc.Expire = true, map[string]bool{"expire": false}
	}
	body, err := yaml.Marshal(doc)
	if err != nil {
		return "", invalid("vm.login: %v", err)
	}
	text := "#cloud-config\n" + string(body)
	if vendor == "" {
		return text, nil
	}
	return together(text, vendor)
}

// together is one document of two, as cloud-init reads several: a MIME archive.
func together(parts ...string) (string, error) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	// Not random: the same specification makes the same seed.
	if err := w.SetBoundary("persys-" + tag(strings.Join(parts, "\x00"))); err != nil {
		return "", badSeed("%v", err)
	}
	fmt.Fprintf(&b, "Content-Type: multipart/mixed; boundary=%q\nMIME-Version: 1.0\n\n", w.Boundary())
	for _, p := range parts {
		kind := "text/cloud-config"
		if strings.HasPrefix(p, "#!") {
			kind = "text/x-shellscript"
		}
		out, err := w.CreatePart(textproto.MIMEHeader{"Content-Type": {kind}})
		if err == nil {
			_, err = io.WriteString(out, p)
		}
		if err != nil {
			return "", badSeed("%v", err)
		}
	}
	if err := w.Close(); err != nil {
		return "", badSeed("%v", err)
	}
	return b.String(), nil
}

// subnet is what a network says of itself: which addresses, and who routes and resolves for them.
type subnet struct {
	prefix netip.Prefix
	router netip.Addr
	routes bool // the router leads further than the network
}

// networkConfig is the network-config of a workload that has none of its own: version 2, DHCP or the
// static address of each interface. An address without prefix length takes that of its network, else
// 24 bits (64 for IPv6).
func networkConfig(nics []nicPlan, subnets map[string][]subnet) (string, error) {
	type match struct {
		MAC string `yaml:"macaddress"`
	}
	type servers struct {
		Addresses []string `yaml:"addresses"`
	}
	type route struct {
		To  string `yaml:"to"`
		Via string `yaml:"via"`
	}
	type ethernet struct {
		Match     match    `yaml:"match"`
		DHCP4     bool     `yaml:"dhcp4"`
		Addresses []string `yaml:"addresses,omitempty"`
		Routes    []route  `yaml:"routes,omitempty"`
		DNS       *servers `yaml:"nameservers,omitempty"`
	}
	doc := struct {
		Version   int                 `yaml:"version"`
		Ethernets map[string]ethernet `yaml:"ethernets"`
	}{2, map[string]ethernet{}}
	routed := false
	for i, n := range nics {
		e := ethernet{Match: match{n.mac}, DHCP4: n.static == ""}
		if n.static != "" {
			p, err := prefixOf(n.static)
			if err != nil {
				return "", err
			}
			bits := p.Bits()
			for _, s := range subnets[n.network] {
				if !s.prefix.Contains(p.Addr()) {
					continue
				}
				if !strings.Contains(n.static, "/") {
					bits = s.prefix.Bits()
				}
				if s.router.IsValid() {
					e.DNS = &servers{[]string{s.router.String()}}
					if s.routes && !routed { // one way out is enough
						routed = true
						to := "0.0.0.0/0"
						if p.Addr().Is6() {
							to = "::/0"
						}
						e.Routes = []route{{to, s.router.String()}}
					}
				}
			}
			if bits == p.Addr().BitLen() && !strings.Contains(n.static, "/") {
				bits = 24
				if p.Addr().Is6() {
					bits = 64
				}
			}
			e.Addresses = []string{netip.PrefixFrom(p.Addr(), bits).String()}
		}
		doc.Ethernets[fmt.Sprintf("nic%d", i)] = e
	}
	out, err := yaml.Marshal(doc)
	return string(out), err
}

// files are the files of the seed, in a fixed order.
func (s *seedPlan) files(network string) []seedFile {
	out := []seedFile{{"meta-data", s.meta}, {"network-config", network}, {"user-data", s.user}}
	if s.vendor != "" {
		out = append(out, seedFile{"vendor-data", s.vendor})
	}
	return out
}

// image is the ISO of a seed, and its checksum over the files: an ISO holds the time of its making.
func image(files []seedFile) (iso []byte, checksum string, err error) {
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
		fmt.Fprintf(sum, "%s %d\n%s", f.name, len(f.text), f.text)
		if err := w.AddFile(strings.NewReader(f.text), f.name); err != nil {
			return nil, "", err
		}
	}
	var b bytes.Buffer
	if err := w.WriteTo(&b, "cidata"); err != nil {
		return nil, "", err
	}
	return b.Bytes(), hex.EncodeToString(sum.Sum(nil)), nil
}
