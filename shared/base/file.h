/* Opening and reading files that are named by a setting, a flag or a folder of settings. Any
 * thread. */
#pragma once

#include "shared/base/error.h"

#include <stdio.h>

/* Opens for reading a regular file, or the null device, which counts as an empty file. Anything
 * else of that name is refused at once: opening a FIFO would wait for a writer, reading a terminal
 * for a person. *out is the caller's to fclose. The message begins with the path. -errno of open;
 * -EISDIR, -EBADMSG: it cannot be read from beginning to end. */
int file_open(const char *path, FILE **out, struct error *err);

/* Opens a file that a program keeps for itself in a directory of its own. Like open(2) with these
 * flags and mode 0600, but only for a regular file. A link leads elsewhere, and a FIFO, device or
 * directory there is a mistake or a trap: -EEXIST at once. *out is the caller's, -1 on failure. The
 * message begins with the path. */
int file_open_own(const char *path, int flags, int *out, struct error *err);

/* Checks that the file named by a setting can be opened as by file_open; path "": no file. The
 * message begins with the setting's name. */
int file_check(const char *name, const char *path, struct error *err);

/* Reads a whole file of any kind, or standard input ("-"). *text: malloc'd, *bytes bytes and a NUL.
 * -E2BIG: more than bytes_max; -ENOMEM; or -errno of opening or reading. The message begins with
 * the path or "stdin". */
int file_read(const char *path, size_t bytes_max, char **text, size_t *bytes, struct error *err);

/* The same for a regular file only, opened as by file_open. */
int file_read_regular(
	const char *path, size_t bytes_max, char **text, size_t *bytes, struct error *err);

/* The absolute path: the directory is resolved, the file's name is kept, because the name of one
 * part of a split model leads to the others, also if it is a symbolic link. malloc'd; NULL when the
 * directory does not exist or there is no memory. */
char *file_absolute(const char *path);
