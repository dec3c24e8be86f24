package moby

import (
	"context"
	"errors"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/docker/go-units"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/persys/compute/agent/driver"
)

// EncodeAuth encodes the credentials for a registry as the value that Options.Credentials returns.
func EncodeAuth(user, password, server string) (string, error) {
	return authconfig.Encode(registry.AuthConfig{Username: user, Password: password, ServerAddress: server})
}

// Image is a parsed reference with its pull policy:
//
//	repo@sha256:…   pinned: the content cannot change; pulled only if missing
//	repo:tag        pulled only if missing
//	repo, :latest   floating: renewed when a container is made. If the registry fails, a local copy
//	                is used. A copy that was built or loaded here is never looked up in a registry.
//	sha256:…        an image of this engine, never pulled
type Image struct {
	Name     string // image reference that is passed to the engine
	Floating bool
	Local    bool
	Platform *ocispec.Platform // nil = the platform of the engine
	// Policy says when the image is pulled: PullAlways, PullMissing, PullNever, or "" (see above).
	Policy string
	// Namespace is the namespace of the workload; the pull uses the credentials for this namespace.
	Namespace string
}

// The pull policies of an image. They are those of Compose that do not build an image.
const (
	PullAlways  = "always"
	PullMissing = "missing" // pulled only if missing, even if the tag is latest
	PullNever   = "never"
)

// ParseImage parses an image reference. field is the name of the spec's field, for errors.
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
		// The tag of a reference with a digest has no effect, so it is dropped: some engines do not find a
		// local image by a reference with both tag and digest.
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

// SetPlatform sets the platform of an image, such as linux/arm64; "" means that of the engine. field is the name of the
// spec's field, for errors.
func (img *Image) SetPlatform(field, text string) error {
	if text == "" {
		return nil
	}
	p, err := platforms.Parse(text)
	if err != nil {
		return driver.Errorf(driver.InvalidSpecification, "image", "%s: %w", field, err)
	}
	img.Platform = &p
	return nil
}

// PlatformName returns the platform of an image as OS/ARCH[/VARIANT]; "" if it is that of the engine.
func (img *Image) PlatformName() string {
	if img.Platform == nil {
		return ""
	}
	return platforms.Format(*img.Platform)
}

// Refresh pulls an image with the policy PullAlways, or a floating image (one with the tag latest, or without
// a tag), before a container is created from it. For other images it does nothing: if such an image is
// missing, the create call reports this, and then the driver pulls it.
func (e *Engine) Refresh(ctx context.Context, id driver.ID, img Image) error {
	switch {
	case img.Policy == PullAlways && !img.Local:
		return e.Pull(ctx, id, img, e.opt.PullTimeout)
	case img.Policy != "" || !img.Floating:
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

// renewed calls Options.Pulled if the name of img refers to another image after the pull. before is the id of
// the image that had this name before the pull.
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
// appear there. It aborts a pull that makes no progress for the time limit. A slow pull that makes progress
// continues, because another attempt would start from the beginning.
func (e *Engine) Pull(ctx context.Context, id driver.ID, img Image, limit time.Duration) error {
	if img.Local {
		return driver.Errorf(driver.ImageNotOnNode, "pull", "no image %s on this engine; an image id cannot be pulled", img.Name)
	}
	if img.Policy == PullNever {
		return driver.Errorf(driver.ImageNotOnNode, "pull", "no image %s on this engine, and pull_policy is never", img.Name)
	}
	auth := ""
	var unknown error
	if e.opt.Credentials != nil {
		// Most images need no credentials, so an error of looking up credentials is reported only if the
		// pull fails.
		if auth, unknown = e.opt.Credentials(img.Namespace, img.Name); unknown != nil {
			auth = ""
		}
	}
	// If the engine had the image before the pull, other programs may use the image, so this agent never
	// removes it.
	mine := false
	if e.opt.Pulled != nil {
		any := img
		any.Platform = nil // the agent must not remove an image that the engine had before, whatever platform it was for
		here, err := e.Have(ctx, any)
		mine = err == nil && !here
	}
	pullCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(limit, func() { cancel(context.DeadlineExceeded) })
	defer stalled.Stop()
	err := e.pullAndDrain(pullCtx, id, img, auth, func() { stalled.Reset(limit) })
	if err == nil {
		if mine {
			e.opt.Pulled(img.Name, "")
		}
		return nil
	}
	late := ctx.Err() == nil && context.Cause(pullCtx) != nil
	switch cause := ctx.Err(); {
	case late: // the stream's own error would only name the interrupted operation
		err = fmt.Errorf("%w: no progress for %s", context.DeadlineExceeded, limit)
	case cause != nil && !errors.Is(err, cause):
		err = errors.Join(cause, err)
	}
	class := pullClass(err)
	if unknown != nil {
		err = fmt.Errorf("%w; tried without credentials: %w", err, unknown)
		if class == driver.InvalidImage { // some registries answer "not found" to callers without access
			class = driver.ImagePullAuthFailed
		}
	}
	return driver.Errorf(class, "pull", "image %s: %w", img.Name, err)
}

// pullAndDrain pulls an image and reads the engine's progress stream to its end. It calls moved for each
// message that reports progress.
func (e *Engine) pullAndDrain(ctx context.Context, id driver.ID, img Image, auth string, moved func()) error {
	name, options := img.Name, client.ImagePullOptions{RegistryAuth: auth}
	if img.Platform != nil {
		options.Platforms = []ocispec.Platform{*img.Platform}
	}
	if e.opt.Progress != nil {
		e.opt.Progress(id, "pulling "+name)
		defer e.opt.Progress(id, "")
	}
	res, err := e.Client.ImagePull(ctx, name, options)
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
		if !progress.note(msg) {
			continue
		}
		moved()
		if text := progress.String(); e.opt.Progress != nil && text != "" && time.Since(told) >= progressEvery {
			told = time.Now()
			e.opt.Progress(id, "pulling "+name+text)
		}
	}
	return errors.Join(err, res.Close())
}

// progressEvery is the interval of progress reports of a pull. It is several seconds, because the schedulers
// write each report to their Raft log.
const progressEvery = 5 * time.Second

// layers holds the last progress message of each image layer during a pull, by the id of the layer.
type layers map[string]struct {
	status   string
	at       int64 // bytes that are downloaded or extracted, depending on the layer's current status
	have, of int64 // bytes downloaded, and the size of the layer
}

// note stores a progress message of a layer. It returns false if the message reports no change.
func (l layers) note(msg jsonstream.Message) bool {
	was, now := l[msg.ID], l[msg.ID]
	if now.status, now.at = msg.Status, 0; msg.Progress != nil {
		now.at = msg.Progress.Current
		if msg.Status == "Downloading" {
			now.have, now.of = msg.Progress.Current, msg.Progress.Total
		}
	}
	l[msg.ID] = now
	return now != was
}

// String formats the total progress of the layers whose size is known.
func (l layers) String() string {
	var have, of int64
	for _, layer := range l {
		have, of = have+layer.have, of+layer.of
	}
	switch {
	case of == 0:
		return ""
	case have >= of:
		return fmt.Sprintf(": unpacking %s", units.BytesSize(float64(of)))
	}
	return fmt.Sprintf(": %s of %s", units.BytesSize(float64(have)), units.BytesSize(float64(of)))
}

// Have reports whether the engine has an image locally for its platform, so that no pull is needed. A copy that was
// built or loaded here for another platform is an error, because such an image is never looked up in a registry.
func (e *Engine) Have(ctx context.Context, img Image) (bool, error) {
	ctx, cancel := e.Call(ctx)
	defer cancel()
	res, err := e.Client.ImageInspect(ctx, img.Name)
	if cerrdefs.IsNotFound(err) {
		return false, nil
	}
	if p := img.Platform; err == nil && p != nil {
		have := ocispec.Platform{OS: res.Os, Architecture: res.Architecture, Variant: res.Variant}
		switch {
		case platforms.NewMatcher(*p).Match(have):
		case len(res.RepoDigests) == 0:
			return false, driver.Errorf(driver.InvalidImage, "image", "image %s was built or loaded on this engine for the platform %s, and the specification asks for the platform %s",
				img.Name, platforms.Format(have), img.PlatformName())
		default:
			return false, nil
		}
	}
	return err == nil, Classify("image", err)
}
