package spec

import (
	"errors"
	"fmt"

	controlv1 "github.com/persys/compute/api/control/v1"
	"github.com/persys/compute/pki"
)

// secrets replaces every non-empty secret of a specification by the result of fn: environment values, also
// those of hooks, options of a log driver, the text of a Compose file (its environment often holds secrets), the
// credentials in a Git URL, cloud-init, and a whole VM under the reserved metadata key. It works on plain, sealed and
// redacted specifications.
func secrets(s *controlv1.WorkloadSpec, fn func(path, value string) (string, error)) error {
	field := func(path string, at *string) error {
		if *at == "" {
			return nil // an empty value is not sealed
		}
		v, err := fn(path, *at)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		*at = v
		return nil
	}
	pairs := func(path string, m map[string]string) error {
		for _, k := range sortedKeys(m) {
			v := m[k]
			if err := field(path+"."+k, &v); err != nil {
				return err
			}
			m[k] = v
		}
		return nil
	}
	switch w := s.GetWorkload().(type) {
	case *controlv1.WorkloadSpec_Container:
		if w.Container != nil {
			if err := pairs("container.env", w.Container.Env); err != nil {
				return err
			}
			for _, l := range hookLists(w.Container) {
				for i, h := range l.hooks {
					if err := pairs(fmt.Sprintf("container.%s[%d].environment", l.key, i), h.Environment); err != nil {
						return err
					}
				}
			}
			if err := pairs("container.logging.options", w.Container.GetLogging().GetOptions()); err != nil {
				return err
			}
		}
	case *controlv1.WorkloadSpec_Compose:
		if w.Compose == nil {
			break
		}
		if err := pairs("compose.env", w.Compose.Env); err != nil {
			return err
		}
		if err := field("compose.inline_yaml", &w.Compose.InlineYaml); err != nil {
			return err
		}
		if before, secret, after := splitGit(w.Compose.GitRepo); secret != "" {
			if err := field("compose.git_repo", &secret); err != nil {
				return err
			}
			w.Compose.GitRepo = before + secret + after
		}
	case *controlv1.WorkloadSpec_Vm:
		if l := w.Vm.GetLogin(); l != nil {
			if err := field("vm.login.password", &l.Password); err != nil {
				return err
			}
		}
		if c := w.Vm.GetCloudInit(); c != nil {
			for _, part := range []textPart{{"user_data", &c.UserData}, {"meta_data", &c.MetaData}, {"network_config", &c.NetworkConfig}, {"vendor_data", &c.VendorData}} {
				if err := field("vm.cloud_init."+part.name, part.text); err != nil {
					return err
				}
			}
		}
	}
	if v, ok := s.GetMetadata()[MetadataVMSpec]; ok {
		if err := field("metadata."+MetadataVMSpec, &v); err != nil {
			return err
		}
		s.Metadata[MetadataVMSpec] = v
	}
	return nil
}

// sealContext returns the context that binds a sealed value to its workload and field. So nobody can copy the
// sealed value to a workload or field of their own and read it there.
func sealContext(id, path string) []byte { return []byte("spec\x00" + id + "\x00" + path) }

// Seal returns the stored form of a plain, normalised specification: an encoded
// controlv1.WorkloadSpec with every secret sealed for this workload.
func Seal(id string, plain *controlv1.WorkloadSpec, key Sealer) ([]byte, error) {
	return sealInPlace(id, plain.CloneVT(), key)
}

// sealInPlace is Seal without a copy: it overwrites s.
func sealInPlace(id string, s *controlv1.WorkloadSpec, key Sealer) ([]byte, error) {
	err := secrets(s, func(path, value string) (string, error) {
		if key == nil {
			return "", ErrNoKey
		}
		return key.Seal([]byte(value), sealContext(id, path))
	})
	if err != nil {
		return nil, fmt.Errorf("workload %s: seal %w", id, err)
	}
	return s.MarshalVT()
}

// Unseal is the inverse of Seal. Its errors name the field and wrap pki.ErrWrongKey,
// pki.ErrTampered or pki.ErrMalformed.
func Unseal(id string, stored []byte, key Sealer) (*controlv1.WorkloadSpec, error) {
	s := &controlv1.WorkloadSpec{}
	if err := s.UnmarshalVT(stored); err != nil {
		return nil, fmt.Errorf("workload %s: stored specification: %w", id, err)
	}
	err := secrets(s, func(path, value string) (string, error) {
		if key == nil {
			return "", ErrNoKey
		}
		plain, err := key.Open(value, sealContext(id, path))
		return string(plain), err
	})
	if err != nil {
		return nil, fmt.Errorf("workload %s: unseal %w", id, err)
	}
	return s, nil
}

// Redact returns a specification, sealed or plain, with every secret replaced by pki.Redacted.
func Redact(s *controlv1.WorkloadSpec) *controlv1.WorkloadSpec {
	out := s.CloneVT()
	// no error is possible: this function never returns an error
	_ = secrets(out, func(string, string) (string, error) { return pki.Redacted, nil })
	return out
}

// Reseal seals the secrets of a stored specification again, with key, which must open them. Values that are sealed
// under a key that key does not open stay as they are: they were restored from a backup of another cluster.
func Reseal(id string, stored []byte, key *pki.Key) ([]byte, error) {
	s := &controlv1.WorkloadSpec{}
	if err := s.UnmarshalVT(stored); err != nil {
		return nil, fmt.Errorf("workload %s: stored specification: %w", id, err)
	}
	err := secrets(s, func(path, value string) (string, error) {
		return ResealValue(value, sealContext(id, path), key)
	})
	if err != nil {
		return nil, fmt.Errorf("workload %s: %w", id, err)
	}
	return s.MarshalVT()
}

// ResealFiles is Reseal for the files of a stack; digest is the digest of the bundle.
func ResealFiles(digest string, stored []byte, key *pki.Key) ([]byte, error) {
	sealed, err := ResealValue(string(stored), filesContext(digest), key)
	return []byte(sealed), err
}

// ResealValue seals one sealed value again, with key. It leaves a value that is sealed under this key, or under a key
// that key does not open.
func ResealValue(value string, context []byte, key *pki.Key) (string, error) {
	if id, ok := pki.SealedUnder(value); ok && id == key.ID() {
		return value, nil
	}
	plain, err := key.Open(value, context)
	if errors.Is(err, pki.ErrWrongKey) {
		return value, nil
	}
	if err != nil {
		return "", err
	}
	return key.Seal(plain, context)
}
