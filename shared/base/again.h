/* A program that runs itself anew in the same process. Any thread, but all others end with it. */
#pragma once

/* Sets a variable in the environment, closes every descriptor but the standard ones, and runs the program
 * with the same arguments. For its peers it is as if the process had been killed. Returns only on
 * failure, with -errno. */
int again_run(const char *name, const char *value, char **argv);
