/* HTTP: connections and requests, by libmicrohttpd, in the daemon's loop thread. */
#pragma once

#include "services/gateway/gateway.h"
#include "shared/base/error.h"

/* Takes over the listening socket, also when it fails. */
int server_open(struct gateway *gateway, int listen_fd, struct error *err);
/* Lets libmicrohttpd do its work. Call after anything that woke exchanges. */
void server_run(struct gateway *gateway);
/* Closes connections whose clients take too long to send a request. Call once a second. */
void server_tick(struct gateway *gateway);
void server_close(struct gateway *gateway);
