package docker

import (
	"context"
	"errors"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"
	"github.com/persys/compute/agent/driver"
)

// EncodeAuth makes the value that Options.Credentials returns.
func EncodeAuth(user, password, server string) (string, error) {
	return authconfig.Encode(registry.AuthConfig{Username: user, Password: password, ServerAddress: server})
}

// image is a parsed reference and what its form says about pulling:
//
//	repo@sha256:…   pinned: what is here is what was meant; pulled only if missing
//	repo:tag        pulled only if missing
//	repo, :latest   floating: renewed when a container is made, but a registry that fails does not
//	                matter while a copy is here, and a copy that came from no registry (built or
//	                loaded here) is never looked up
//	sha256:…        an image of this engine, never pulled
type image struct {
	name     string // what the engine is asked for
	floating bool
	local    bool
}

func parseImage(ref string) (image, error) {
	if ref == "" {
		return image{}, driver.Errorf(driver.InvalidSpecification, "image", "container.image: must not be empty")
	}
	any, err := reference.ParseAnyReference(ref)
	if err != nil {
		return image{}, driver.Errorf(driver.InvalidImage, "image", "container.image: %q: %w", ref, err)
	}
	named, ok := any.(reference.Named)
	if !ok {
		return image{name: any.String(), local: true}, nil
	}
	if digested, ok := named.(reference.Digested); ok {
		// A tag beside a digest says nothing, and some engines do not find the pair locally.
		canonical, err := reference.WithDigest(reference.TrimNamed(named), digested.Digest())
		if err != nil {
			return image{}, driver.Errorf(driver.InvalidImage, "image", "container.image: %q: %w", ref, err)
		}
		return image{name: reference.FamiliarString(canonical)}, nil
	}
	tagged := reference.TagNameOnly(named)
	return image{
		name:     reference.FamiliarString(tagged),
		floating: tagged.(reference.Tagged).Tag() == "latest",
	}, nil
}

// refresh renews a floating image before a container is made of it. Other images cost nothing
// here: creating tells when they are missing.
func (d *Driver) refresh(ctx context.Context, id driver.ID, img image) error {
	if !img.floating {
		return nil
	}
	inspectCtx, cancel := d.call(ctx)
	res, err := d.cli.ImageInspect(inspectCtx, img.name)
	cancel()
	switch {
	case cerrdefs.IsNotFound(err):
		return d.pull(ctx, img, d.opt.PullTimeout)
	case err != nil:
		return classify("image", err)
	case len(res.RepoDigests) == 0:
		return nil
	}
	err = d.pull(ctx, img, d.opt.RefreshTimeout)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil || driver.ClassOf(err) == driver.RuntimeUnhealthy {
		return err
	}
	d.log.Warn("the image could not be renewed; the copy on this machine is used",
		"workload", string(id), "image", img.name, "error", err)
	return nil
}

// pull fetches an image and reads the engine's progress to its end, where late errors are.
func (d *Driver) pull(ctx context.Context, img image, limit time.Duration) error {
	if img.local {
		return driver.Errorf(driver.InvalidImage, "pull", "no image %s on this engine; an image id cannot be pulled", img.name)
	}
	auth := ""
	if d.opt.Credentials != nil {
		var err error
		if auth, err = d.opt.Credentials(img.name); err != nil {
			return driver.Errorf(driver.ImagePullAuthFailed, "pull", "credentials for %s: %w", img.name, err)
		}
	}
	pullCtx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := d.pullAndDrain(pullCtx, img.name, auth)
	if err == nil {
		return nil
	}
	if cause := pullCtx.Err(); cause != nil && !errors.Is(err, cause) {
		// The stream of a pull that ran out of time breaks with whatever it was doing.
		err = errors.Join(cause, err)
	}
	class := pullClass(err)
	if class == driver.ImagePullTimeout && pullCtx.Err() != nil && ctx.Err() == nil {
		return driver.Errorf(class, "pull", "image %s: not pulled within %s: %w", img.name, limit, err)
	}
	return driver.Errorf(class, "pull", "image %s: %w", img.name, err)
}

func (d *Driver) pullAndDrain(ctx context.Context, name, auth string) error {
	res, err := d.cli.ImagePull(ctx, name, client.ImagePullOptions{RegistryAuth: auth})
	if err != nil {
		return err
	}
	return errors.Join(res.Wait(ctx), res.Close())
}
