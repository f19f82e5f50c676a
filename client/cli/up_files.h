/* The files that a service leaves in its runtime directory. */
#pragma once

#include <stddef.h>

/* After all processes have ended: removes sockets and lock files, except those of a process that
 * was started there in another way. left: the names of the files that stay, such as
 * "policy.journal, up.log". */
void up_files_clean(const char *runtime_dir, char *left, size_t bytes);
