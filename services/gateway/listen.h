/* The socket that HTTP clients connect to. */
#pragma once

#include "shared/base/error.h"

/* where: "ADDRESS:PORT", "[ADDRESS]:PORT" or "unix:PATH" (made with mode 0600; a socket that nobody listens on is replaced). The
 * descriptor, or -errno with *err. */
int listen_open(const char *where, struct error *err);
/* Only whether it could be one. */
int listen_check(const char *where, struct error *err);
