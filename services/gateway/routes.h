/* The table of paths that the gateway serves, with the handler of each. Loop thread. */
#pragma once

#include <stdbool.h>

struct exchange;

#define ROUTES_JSON "application/json; charset=utf-8"
#define ROUTES_HTML "text/html; charset=utf-8"

struct route {
	const char *method, *path;
	bool open; /* no API key is required */
	const char *type; /* media type of the response, unless it is a stream */
	/* Called when the whole request has arrived. Fills exchange->out, or starts something that
	 * will. False: the exchange's fault has the reason. */
	bool (*handle)(struct exchange *exchange);
};

/* True when the request names the model that is served, or none. False: the exchange's fault has
 * the reason. */
bool routes_serves(struct exchange *exchange);
/* Sets exchange->params.idempotency from the request's Idempotency-Key, if it has one. */
void routes_take_key(struct exchange *exchange);
/* The route of a method and a path, or NULL. *known: the path has a route, with this or another
 * method. */
const struct route *routes_find(const char *method, const char *path, bool *known);
