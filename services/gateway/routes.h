/* The paths that the gateway knows, and what each does. */
#pragma once

#include <stdbool.h>

struct exchange;

#define ROUTES_JSON "application/json; charset=utf-8"
#define ROUTES_HTML "text/html; charset=utf-8"

struct route {
	const char *method, *path;
	bool open; /* no key is asked for */
	const char *type; /* of the response, when it is no stream */
	/* The whole request is there. Fills out, or begins something that will. false: the exchange's fault says why not. */
	bool (*handle)(struct exchange *exchange);
};

/* Whether the model that the request names is the one that is served; else the exchange's fault says so. */
bool routes_serves(struct exchange *exchange);
/* The request's Idempotency-Key, if it has one. */
void routes_take_key(struct exchange *exchange);
/* *known: whether the path is known with another method. NULL: this pair is not. */
const struct route *routes_find(const char *method, const char *path, bool *known);
