/*
 * A file that one process holds locked (flock), with its pid in it. The kernel drops the lock when
 * the holder dies, however it dies, so the lock is never stale.
 */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <sys/types.h>

/* Takes the lock and writes our pid. 0 with *fd, which must stay open. -EWOULDBLOCK: another
 * process holds it; *holder is its pid, 0: not written yet. Otherwise -errno; the message begins
 * with the path. */
int lock_file_take(const char *path, int *fd, pid_t *holder, struct error *err);
/* Writes our pid again, after a fork that passed the lock on. -errno; a failure loses nothing. */
int lock_file_write(int fd);
/* Removes the file and releases the lock. */
void lock_file_remove(const char *path, int *fd);
/* True when a process holds the lock; *holder is its pid, 0 when the file has none. */
bool lock_file_held(const char *path, pid_t *holder);
