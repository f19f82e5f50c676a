/* Where a model's file is stored: its file system, the disk below it, and how much of it is in the
 * page cache. */
#pragma once

#include "client/cli/doctor/finding.h"

#include <stdbool.h>
#include <stdint.h>

struct storage {
	char type[32], source[96]; /* of the file system: "ext4", "/dev/nvme0n1p2"; "": not known */
	bool network, memory; /* it is on another machine; in memory */
	int rotates; /* 1: a rotating disk; 0: it does not rotate; -1: not known */
	/* available for a copy, without the reserve for root; UINT64_MAX: not known */
	uint64_t free_bytes;
	uint64_t bytes; /* of the file, or the first part's */
	int64_t cached_bytes; /* of them in the page cache; -1: the kernel does not tell */
};

/* The file system that contains an absolute path, from a table like /proc/self/mountinfo. False:
 * there is none. */
bool storage_find(const char *mountinfo, const char *path, struct storage *out);

/* Fills *out for an open file. root: the directory that contains /proc and /sys, mostly "". */
void storage_read(const char *root, const char *path, int fd, struct storage *out);
