/*
 * The limits that cgroups set for this process: its own cgroup's, and those of every cgroup above it, by version 2 or
 * version 1. So a systemd unit's MemoryMax= and CPUQuota= count as a container's limits do.
 */
#ifndef BASE_CGROUP_H
#define BASE_CGROUP_H

#include <stdint.h>

struct cgroup_limits {
    uint64_t memory_bytes; /* the smallest of memory.max, memory.high and memory.limit_in_bytes; UINT64_MAX: none */
    int cpus;              /* the smallest quota, rounded down, but at least 1; 0: none */
};

struct cgroup_limits cgroup_limits(void);

/* For tests: with another membership file than /proc/self/cgroup, and another folder than /sys/fs/cgroup. */
struct cgroup_limits cgroup_read(const char *membership, const char *mounted);

#endif
