/*
 * A file that gets its name only when it is complete: until then it is written beside it as
 * NAME.part. Every file that a person tells a program to write goes through here. If the name is a
 * symbolic link, the file that it leads to is replaced and the link stays.
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct new_file {
	const char *path; /* as given by the caller */
	char *target; /* owned: the path that it leads to */
	char *part; /* owned */
	FILE *file;
	int fd; /* of file; -1: not open */
};

/* Refuses a path that exists already (unless force), is not a regular file, or leads nowhere; and a
 * disk without room for `bytes` bytes (0: not checked). Call new_file_close afterwards, whatever
 * this returns. */
int new_file_open(
	struct new_file *f, const char *path, bool force, uint64_t bytes, struct error *err);
/* rc 0: gives the file its name, synced to disk. Otherwise: removes what was written. Returns rc,
 * or its own error. */
int new_file_close(struct new_file *f, int rc, struct error *err);
