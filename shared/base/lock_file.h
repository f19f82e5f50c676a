/*
 * A file that one process holds locked (flock), with its number in it. The kernel drops the lock when
 * the holder dies, however it dies, so it is never stale.
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <sys/types.h>

/* 0 with *fd, to be kept open, and our number in the file. -EWOULDBLOCK: another holds it; *holder is its number, 0: it has not
 * written it. Else -errno with a message that begins with the path. */
int lock_file_take(const char *path, int *fd, pid_t *holder, struct error *err);
/* Our number again, after a fork that handed the lock on. -errno; nothing there is lost by a failure. */
int lock_file_write(int fd);
/* Takes the file away and lets the lock go. */
void lock_file_remove(const char *path, int *fd);
/* Whether a process holds it; *holder is its number, 0 when the file has none. */
bool lock_file_held(const char *path, pid_t *holder);
