package moby

import (
	"context"
	"errors"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/docker/go-units"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"
	"github.com/persys/compute/agent/driver"
)

// EncodeAuth returns the value for Options.Credentials returns.
func EncodeAuth(user, password, server string) (string, error) {
	return authconfig.Encode(registry.AuthConfig{Username: user, Password: password, ServerAddress: server})
}

// Image is a parsed reference with its pull policy:
//
//	repo@sha256:…   pinned: what is here is what was meant; pulled only if missing
//	repo:tag        pulled only if missing
//	repo, :latest   floating: renewed when a container is made, but a registry that fails does not
//	                matter while a copy is here, and a copy that came from no registry (built or
//	                loaded here) is never looked up
//	sha256:…        an image of this engine, never pulled
type Image struct {
	Name     string // the reference passed to the engine
	Floating bool
	Local    bool
}

// ParseImage parses the reference in a field of the spec.
func ParseImage(field, ref string) (Image, error) {
	if ref == "" {
		return Image{}, driver.Errorf(driver.InvalidSpecification, "image", "%s: must not be empty", field)
	}
	any, err := reference.ParseAnyReference(ref)
	if err != nil {
		return Image{}, driver.Errorf(driver.InvalidImage, "image", "%s: %q: %w", field, ref, err)
	}
	named, ok := any.(reference.Named)
	if !ok {
		return Image{Name: any.String(), Local: true}, nil
	}
	if digested, ok := named.(reference.Digested); ok {
		// A digest makes the tag meaningless, and some engines do not find an image by tag and digest locally.
		canonical, err := reference.WithDigest(reference.TrimNamed(named), digested.Digest())
		if err != nil {
			return Image{}, driver.Errorf(driver.InvalidImage, "image", "%s: %q: %w", field, ref, err)
		}
		return Image{Name: reference.FamiliarString(canonical)}, nil
	}
	tagged := reference.TagNameOnly(named)
	return Image{
		Name:     reference.FamiliarString(tagged),
		Floating: tagged.(reference.Tagged).Tag() == "latest",
	}, nil
}

// Refresh pulls a floating image before a container is created from it. For other images it does nothing:
// the create call reports a missing image.
func (e *Engine) Refresh(ctx context.Context, id driver.ID, img Image) error {
	if !img.Floating {
		return nil
	}
	inspectCtx, cancel := e.Call(ctx)
	res, err := e.Client.ImageInspect(inspectCtx, img.Name)
	cancel()
	switch {
	case cerrdefs.IsNotFound(err):
		return e.Pull(ctx, id, img, e.opt.PullTimeout)
	case err != nil:
		return Classify("image", err)
	case len(res.RepoDigests) == 0:
		return nil
	}
	err = e.Pull(ctx, id, img, e.opt.RefreshTimeout)
	if err == nil {
		e.renewed(ctx, img, res.ID)
		return nil
	}
	if ctx.Err() != nil || driver.ClassOf(err) == driver.RuntimeUnhealthy {
		return err
	}
	e.log.Warn("the image could not be renewed; the copy on this machine is used",
		"workload", string(id), "image", img.Name, "error", err)
	return nil
}

// renewed reports an image whose name was taken by a newer one.
func (e *Engine) renewed(ctx context.Context, img Image, before string) {
	if e.opt.Pulled == nil {
		return
	}
	ctx, cancel := e.Call(ctx)
	defer cancel()
	if now, err := e.Client.ImageInspect(ctx, img.Name); err == nil && now.ID != before {
		e.opt.Pulled(img.Name, before)
	}
}

// Pull fetches an image for a workload. It reads the engine's progress stream to its end, because errors
// appear there.
func (e *Engine) Pull(ctx context.Context, id driver.ID, img Image, limit time.Duration) error {
	if img.Local {
		return driver.Errorf(driver.InvalidImage, "pull", "no image %s on this engine; an image id cannot be pulled", img.Name)
	}
	auth := ""
	var unknown error
	if e.opt.Credentials != nil {
		// Most images need no credentials, so an error in finding them is reported only if the pull fails.
		if auth, unknown = e.opt.Credentials(img.Name); unknown != nil {
			auth = ""
		}
	}
	// An image that existed before has other users, and this agent never removes it.
	mine := false
	if e.opt.Pulled != nil {
		here, err := e.Have(ctx, img)
		mine = err == nil && !here
	}
	pullCtx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := e.pullAndDrain(pullCtx, id, img.Name, auth)
	if err == nil {
		if mine {
			e.opt.Pulled(img.Name, "")
		}
		return nil
	}
	if cause := pullCtx.Err(); cause != nil && !errors.Is(err, cause) {
		// After a timeout the stream's own error depends on the interrupted operation; add the cause.
		err = errors.Join(cause, err)
	}
	class := pullClass(err)
	if unknown != nil {
		err = fmt.Errorf("%w; tried without credentials: %w", err, unknown)
		if class == driver.InvalidImage { // some registries answer "not found" to callers without access
			class = driver.ImagePullAuthFailed
		}
	}
	if class == driver.ImagePullTimeout && pullCtx.Err() != nil && ctx.Err() == nil {
		return driver.Errorf(class, "pull", "image %s: not pulled within %s: %w", img.Name, limit, err)
	}
	return driver.Errorf(class, "pull", "image %s: %w", img.Name, err)
}

func (e *Engine) pullAndDrain(ctx context.Context, id driver.ID, name, auth string) error {
	res, err := e.Client.ImagePull(ctx, name, client.ImagePullOptions{RegistryAuth: auth})
	if err != nil {
		return err
	}
	progress := layers{}
	var told time.Time
	for msg, streamErr := range res.JSONMessages(ctx) {
		if err = streamErr; err != nil {
			break
		}
		if msg.Error != nil {
			err = msg.Error
			break
		}
		if e.opt.Progress == nil || !progress.note(msg) || time.Since(told) < progressEvery {
			continue
		}
		told = time.Now()
		e.opt.Progress(id, "pulling "+name+": "+progress.String())
	}
	if e.opt.Progress != nil {
		e.opt.Progress(id, "")
	}
	return errors.Join(err, res.Close())
}

// progressEvery is the interval of progress reports of a pull; each is an entry in the schedulers' log.
const progressEvery = 5 * time.Second

// layers holds the progress of each layer of a pull, in bytes.
type layers map[string]struct{ have, of int64 }

// note adds a progress message; it returns false if the message has no layer size.
func (l layers) note(msg jsonstream.Message) bool {
	if msg.ID == "" || msg.Progress == nil || msg.Progress.Total <= 0 || msg.Status != "Downloading" {
		return false
	}
	l[msg.ID] = struct{ have, of int64 }{msg.Progress.Current, msg.Progress.Total}
	return true
}

// String formats the progress over the layers whose size is known.
func (l layers) String() string {
	var have, of int64
	for _, layer := range l {
		have, of = have+layer.have, of+layer.of
	}
	return fmt.Sprintf("%s of %s", units.BytesSize(float64(have)), units.BytesSize(float64(of)))
}

// Have reports whether the engine has an image.
func (e *Engine) Have(ctx context.Context, img Image) (bool, error) {
	ctx, cancel := e.Call(ctx)
	defer cancel()
	_, err := e.Client.ImageInspect(ctx, img.Name)
	if cerrdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil, Classify("image", err)
}
