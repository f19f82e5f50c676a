/* Pictures of the benchmarks: gnuplot draws them, as SVG or PNG by the name of the file. */
#pragma once

#include "shared/base/error.h"

#include <stdio.h>

/* -EINVAL with a message: path is not the name of a picture. */
int picture_check(const char *path, struct error *err);
/* Begins a picture of this size, in pixels; path was checked. The caller writes gnuplot's commands
 * to the result. NULL with a message: gnuplot could not be started. */
FILE *picture_open(const char *path, unsigned width, unsigned height, struct error *err);
/* Waits until the picture is drawn. 0, or -EIO with a message. */
int picture_close(FILE *gnuplot, struct error *err);
