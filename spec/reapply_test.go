package spec

import (
	"strings"
	"testing"
)

// TestMarkersNeedStoredValues: Parse accepts the marker for each kind of secret, and Prepare refuses it unless Keep has
// replaced it before.
func TestMarkersNeedStoredValues(t *testing.T) {
	for path, text := range map[string]string{
		"container.env.A":                     "id: w\nresources: {cpu: 1}\ncontainer: {image: x, env: {A: '***'}}\n",
		"container.logging.options.max-size":  "id: w\nresources: {cpu: 1}\ncontainer: {image: x, logging: {driver: local, options: {max-size: '***'}}}\n",
		"container.pre_stop[0].environment.A": "id: w\nresources: {cpu: 1}\ncontainer: {image: x, pre_stop: [{command: y, environment: {A: '***'}}]}\n",
		"compose.inline_yaml":                 "id: w\nresources: {cpu: 1}\ncompose: {inline: '***'}\n",
		"compose.git_repo":                    "id: w\nresources: {cpu: 1}\ncompose: {git: 'https://***@example.com/a.git'}\n",
		"vm.cloud_init.user_data":             "id: w\nvm: {cpus: 1, memory: 1Gi, disks: [{}], cloud_init: {user_data: '***'}}\n",
		"vm.login.password":                   "id: w\nvm: {cpus: 1, memory: 1Gi, disks: [{}], login: {user: me, password: '***'}}\n",
		"metadata." + MetadataVMSpec:          "id: w\ntype: vm\nmetadata: {" + MetadataVMSpec + ": '***'}\n",
	} {
		req := parseOne(t, text)
		want := "spec." + path + ": is the marker ***, which keeps the stored value, and this workload has none there"
		if _, err := Prepare(req, testKey(t)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("field %s has the marker ***: Prepare returned %v, want %s", path, err, want)
		}
		if _, err := Keep(req, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("field %s has the marker ***: Keep without a stored specification returned %v, want %s", path, err, want)
		}
		if !KeepsSecrets(req.GetSpec()) {
			t.Errorf("field %s has the marker ***, but KeepsSecrets returned false", path)
		}
	}
}
