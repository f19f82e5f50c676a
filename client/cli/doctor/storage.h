/* Where a model's file lies: its file system, the disk below it, and what of it the page cache holds. */
#pragma once

#include "client/cli/doctor/finding.h"

#include <stdbool.h>
#include <stdint.h>

struct storage {
	char type[32], source[96]; /* of the file system: "ext4", "/dev/nvme0n1p2"; "": not known */
	bool network, memory; /* it is on another machine; in memory */
	int rotates; /* 1: a disk of the old kind; 0: none; -1: not known */
	uint64_t
		free_bytes; /* for a copy, for who may not use the reserve; UINT64_MAX: not known */
	uint64_t bytes; /* of the file, or the first part's */
	int64_t cached_bytes; /* of them in the page cache; -1: the kernel does not tell */
};

/* The file system that a path from the root on lies in, of a table as /proc/self/mountinfo. False: none. */
bool storage_find(const char *mountinfo, const char *path, struct storage *out);

/* Of an open file; root: below which /proc and /sys are, "" mostly. */
void storage_read(const char *root, const char *path, int fd, struct storage *out);
