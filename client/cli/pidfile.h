/* RUNTIME_DIR/up.pid: held locked (flock) by the `outrider up` that lives there. */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <sys/types.h>

/* 0 with *fd, to be kept open, and our pid in it; -EADDRINUSE with the other's pid in the message. */
int pidfile_take(const char *runtime_dir, int *fd, struct error *err);
/* Writes our pid again, after a fork. */
void pidfile_write(int fd);
void pidfile_remove(const char *runtime_dir, int *fd);
/* Whether one lives there, and its pid. */
bool pidfile_alive(const char *runtime_dir, pid_t *pid);
