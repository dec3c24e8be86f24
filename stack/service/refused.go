package service

import "maps"

// refused maps each key of a Compose service that no node can honour to the reason, with the text to write
// instead.
func refused() map[string]string {
	return map[string]string{
		"cpu_count":       "is for Windows; nodes run Linux: write cpus",
		"cpu_percent":     "is for Windows; nodes run Linux: write cpus",
		"cpu_rt_period":   realTime,
		"cpu_rt_runtime":  realTime,
		"credential_spec": "is for Windows; nodes run Linux",
		"isolation":       "is for Windows; nodes run Linux: leave it out, or choose an OCI runtime with runtime",
		"storage_opt":     "works only on engines with a quota for each container: write resources: {disk: 5Gi}, which every node enforces",
	}
}

const realTime = "needs an engine with cgroup v1 that was started with a budget for real-time processes: write cap_add: [SYS_NICE] and ulimits: {rtprio: 50} instead"

// NotOfAContainer returns the keys of a Compose service that a container does not have, with the reason and what to
// write instead.
func NotOfAContainer() map[string]string {
	out := refused()
	maps.Copy(out, map[string]string{
		"attach":             "is for docker compose up in a terminal: follow the output with persysctl logs -f, or run the image with persysctl run",
		"build":              "nodes build no images: build and push one, and name it in image",
		"container_name":     "a container is named after its workload: set id",
		"depends_on":         "a container has no other services: write a Compose stack, or let the program try again until the other workload answers",
		"deploy":             "write count, resources, update, constraints and spread of the workload instead",
		"develop":            "is for docker compose watch in a terminal: apply the file again after a change",
		"dockerfile":         "nodes build no images: build and push one, and name it in image",
		"extends":            "a container takes nothing from other services: use YAML anchors, or a Compose stack",
		"external_links":     "links to other containers do not exist: join a network with networks, where each workload has its name in DNS",
		"links":              "links to other containers do not exist: join a network with networks, where each workload has its name in DNS",
		"log_driver":         "obsolete: write logging: {driver: …}",
		"log_opt":            "obsolete: write logging: {options: …}",
		"models":             "agents have no model runner",
		"net":                "obsolete: write network_mode",
		"pre_start":          "runs in a container of its own: write a Compose stack, or let the command of this container do it",
		"profiles":           "leave the workload out of the file instead, or write desired: stopped",
		"provider":           "agents run containers only",
		"pull_refresh_after": "write pull_policy: always",
		"scale":              "write count of the workload instead",
		"use_api_socket":     "mount the socket: volumes: [/var/run/docker.sock:/var/run/docker.sock]; the policy of the namespace must allow engine_socket",
		"volume_driver":      "write managed_volumes, which have a driver",
		"volumes_from":       "volumes of other containers cannot be mounted: give both workloads the same managed_volumes or host path",
	})
	return out
}
