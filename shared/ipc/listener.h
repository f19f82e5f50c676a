/* Listening Unix sockets, and accepting connections without taking the last descriptors that the
 * process needs elsewhere. */
#pragma once

#include "shared/base/error.h"

#include <stdint.h>

/* Opens a non-blocking listening socket of this type at `path`. A live server there gives
 * -EADDRINUSE; a stale file is replaced. The mode is 0600 before anyone can connect. */
int listener_open(const char *path, int type, int backlog, int *fd, struct error *err);

/* How many descriptors the process has left, judged by the lowest free number; some numbers above
 * it may be taken. fd: any open descriptor. */
uint64_t listener_free(int fd);

/* Accepts the next connection, without waiting. -EAGAIN: nobody waits. -EMFILE: only `reserve`
 * descriptors are left, which the process may need for other things. -ENFILE: the system has no
 * room for one more. In the last two cases the client stays in the backlog and the socket stays
 * readable, so poll it again only when something may have changed. */
int listener_accept(int fd, uint32_t reserve);
