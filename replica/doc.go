// Package replica is one scheduler of a cluster, as a library: the Raft node, the leader's loop, the
// gRPC server, DNS, the mirror into etcd, certificates and the HTTP endpoints, wired together.
//
//	cfg, err := replica.DefaultConfig()
//	cfg.Insecure, cfg.DataDir, cfg.BootstrapExpect = true, dir, 1
//	r, err := replica.Start(ctx, cfg, "1.0", slog.Default())
//	err = r.Run(ctx) // until ctx ends
//
// cmd/scheduler runs one replica, and `persys dev` runs three in one process.
//
// Config carries the struct tags that package config reads (environment variable, flag, default,
// range). A second struct without tags was the alternative: it would repeat some seventy fields and a
// line of copying for each, and the errors of this package name the environment variable of a setting
// either way. The tags have no effect on an embedder, who takes DefaultConfig and sets fields.
//
// Three subjects that need little of a replica are packages of their own: keyring settles on the cluster
// key, coredns watches CoreDNS servers, and mirrorspec translates between specifications and the
// records in etcd.
package replica
