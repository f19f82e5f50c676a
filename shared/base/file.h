/* Opening the files that a setting, a flag or a folder of settings names. Any thread. */
#pragma once

#include "shared/base/error.h"

#include <stdio.h>

/* Opens a regular file for reading, or the null device, which is an empty one. Anything else that may stand under the name is
 * refused at once: opening a FIFO would wait for whoever writes to it, reading a terminal for a person. *out is the caller's,
 * closed with fclose. The message begins with the path. -errno of open; -EISDIR, -EBADMSG: not a file that can be read from
 * beginning to end. */
int file_open(const char *path, FILE **out, struct error *err);
