/*
 * A file that has its name only when it is whole: written beside it as NAME.part first. Every file that a person names for a program
 * to write goes through here. A name that is a symbolic link is written through: the file it leads to is replaced, the link stays.
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct new_file {
	const char *path; /* as it was named */
	char *target; /* owned: where it leads to */
	char *part; /* owned */
	FILE *file;
	int fd; /* of file, -1: not open */
};

/* Refuses a path that is there already (unless force) or is no regular file or leads nowhere, and a disk without room for so many bytes
 * (0: not asked). Whatever it returns, new_file_close follows. */
int new_file_open(
	struct new_file *f, const char *path, bool force, uint64_t bytes, struct error *err);
/* rc 0: gives the file its name, on the disk; else removes what was written. Returns rc, or its own error. */
int new_file_close(struct new_file *f, int rc, struct error *err);
