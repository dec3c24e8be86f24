package libvirt

import (
	"crypto/rand"
	"os"
	"path/filepath"

	"github.com/persys/compute/agent/driver/libvirt/diskfile"
)

// screenFile is the file in a domain's folder with the password of its VNC screen. Only root may read it.
const screenFile = "vnc-password"

// screenChars is the length of a password. The RFB protocol ignores characters after the eighth.
const screenChars = 8

// screenPassword returns the password of a domain's VNC screen. The first call for a domain makes
// the password.
func (d *Driver) screenPassword(keep string) (string, error) {
	path := filepath.Join(keep, screenFile)
	raw, err := os.ReadFile(path)
	if err == nil && len(raw) >= screenChars {
		return string(raw[:screenChars]), nil
	}
	if err != nil && !os.IsNotExist(err) {
		return "", diskfile.Failed(err)
	}
	password := rand.Text()[:screenChars]
	return password, diskfile.Write(path, []byte(password+"\n"))
}
