/* A program that runs itself anew in the same process. Any thread, but all others end with it. */
#pragma once

#include <stddef.h>

/* Sets a variable in the environment, closes every descriptor but the standard ones and keep[0..n_keep),
 * and runs the program with the same arguments. Returns only on failure, with -errno. */
int again_run(const char *name, const char *value, const int *keep, size_t n_keep, char **argv);
