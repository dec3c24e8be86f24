// Package store keeps the durable state of an agent in one bbolt file: orders, reports, tasks, tombstones,
// the epoch, and the records of images and volumes.
//
//   - A write is on disk before it returns, unless the store is volatile.
//   - Secrets are encrypted with the key in the file <path>.key: environment values, texts and URLs of stacks,
//     cloud-init documents, passwords.
//   - A file of a legacy v1 agent is taken over; its buckets keep their names and fields.
//   - A damaged file is an error that names the file, never a panic.
package store
