/* RUNTIME_DIR/up.pid: the `outrider up` that serves this directory holds it locked (flock). */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <sys/types.h>

/* 0: *fd, which must stay open, holds the lock, and the file our pid. -EADDRINUSE, with the pid of
 * the other process in the message. */
int up_pid_take(const char *runtime_dir, int *fd, struct error *err);
/* Writes our pid again, after a fork. */
void up_pid_write(int fd);
void up_pid_remove(const char *runtime_dir, int *fd);
/* Whether such a process is running, and its pid. */
bool up_pid_alive(const char *runtime_dir, pid_t *pid);
