/* Listening Unix sockets, and how a connection is accepted without taking the last descriptors from the rest of the process. */
#pragma once

#include "shared/base/error.h"

#include <stdint.h>

/* A socket of this type that listens at path, not blocking. A live server there is -EADDRINUSE, a stale file is replaced.
 * Mode 0600 before anyone can connect. */
int listener_open(const char *path, int type, int backlog, int *fd, struct error *err);

/* How many descriptors the process has left, as far as the lowest free one shows: some numbers above may be taken. fd: any open
 * one. */
uint64_t listener_free(int fd);

/* The next connection, not blocking; -EAGAIN when nobody waits; -EMFILE when only `reserve` descriptors are left, which this
 * process may need for something else; -ENFILE when the system has no room for it. Whoever waits then stays in the backlog, and
 * the socket stays readable: poll it again when something may have changed. */
int listener_accept(int fd, uint32_t reserve);
