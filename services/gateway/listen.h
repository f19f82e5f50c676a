/* The socket for HTTP clients. */
#pragma once

#include "shared/base/error.h"

/* where: "ADDRESS:PORT", "[ADDRESS]:PORT" or "unix:PATH" (made with mode 0600; replaces a socket on
 * which no process listens). Returns the descriptor, or -errno with *err. */
int listen_open(const char *where, struct error *err);
/* Only checks whether `where` has one of these forms. */
int listen_check(const char *where, struct error *err);
