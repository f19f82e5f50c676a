/* Opening and reading the files that a setting, a flag or a folder of settings names. Any thread. */
#pragma once

#include "shared/base/error.h"

#include <stdio.h>

/* Opens a regular file for reading, or the null device, which is an empty one. Anything else that may stand under the name is
 * refused at once: opening a FIFO would wait for whoever writes to it, reading a terminal for a person. *out is the caller's,
 * closed with fclose. The message begins with the path. -errno of open; -EISDIR, -EBADMSG: not a file that can be read from
 * beginning to end. */
int file_open(const char *path, FILE **out, struct error *err);

/* Whether the file that a setting of this name names could be opened so; "" names none. The message begins with the name. */
int file_check(const char *name, const char *path, struct error *err);

/* All of a file, of whatever kind, or of standard input, which "-" is: *text, malloc'd, of *bytes with a NUL behind. -E2BIG: it
 * has more than bytes_max; -ENOMEM, or -errno of opening or reading. The message begins with the path or "stdin". */
int file_read(const char *path, size_t bytes_max, char **text, size_t *bytes, struct error *err);

/* The path from the root on: its directory resolved, its name kept, for the name of a split model's part, also that of a symbolic
 * link, leads to the other parts. malloc'd; NULL when the directory is not there, or there is no memory. */
char *file_absolute(const char *path);
