/* Opening and reading the files that a setting, a flag or a folder of settings names. Any thread. */
#pragma once

#include "shared/base/error.h"

#include <stdio.h>

/* Opens a regular file for reading, or the null device, which is an empty one. Anything else that may stand under the name is
 * refused at once: opening a FIFO would wait for whoever writes to it, reading a terminal for a person. *out is the caller's,
 * closed with fclose. The message begins with the path. -errno of open; -EISDIR, -EBADMSG: not a file that can be read from
 * beginning to end. */
int file_open(const char *path, FILE **out, struct error *err);

/* Opens a file that the programs keep for themselves, in a directory of theirs: as open(2) with these flags, mode 0600, but a
 * regular file alone. A link there leads to what is not theirs, and a FIFO, a device or a directory in its place is somebody's
 * mistake or trap: it is refused at once with -EEXIST. *out is the caller's, -1 on failure. The message begins with the path. */
int file_open_own(const char *path, int flags, int *out, struct error *err);

/* Whether the file that a setting of this name names could be opened so; "" names none. The message begins with the name. */
int file_check(const char *name, const char *path, struct error *err);

/* All of a file, of whatever kind, or of standard input, which "-" is: *text, malloc'd, of *bytes with a NUL behind. -E2BIG: it
 * has more than bytes_max; -ENOMEM, or -errno of opening or reading. The message begins with the path or "stdin". */
int file_read(const char *path, size_t bytes_max, char **text, size_t *bytes, struct error *err);

/* The same of a regular file alone, as file_open opens it. */
int file_read_regular(
	const char *path, size_t bytes_max, char **text, size_t *bytes, struct error *err);

/* The path from the root on: its directory resolved, its name kept, for the name of a split model's part, also that of a symbolic
 * link, leads to the other parts. malloc'd; NULL when the directory is not there, or there is no memory. */
char *file_absolute(const char *path);
