/* HTTP: connections and requests, by libmicrohttpd, driven by the daemon's loop. */
#pragma once

#include "services/gateway/gateway.h"
#include "shared/base/error.h"

/* Takes the listening socket, whatever comes. */
int server_open(struct gateway *gateway, int listen_fd, struct error *err);
/* Lets libmicrohttpd do what there is to do; after anything that woke exchanges. */
void server_run(struct gateway *gateway);
/* Closes connections that take too long to send their request. */
void server_tick(struct gateway *gateway);
void server_close(struct gateway *gateway);
