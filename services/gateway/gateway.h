/*
 * The gateway: an HTTP server in front of the SDK, in one process and, but for the watch and what waits, on one thread: the daemon's loop.
 *
 *	server.c	connections and requests, by libmicrohttpd
 *	routes.c	which path is what
 *	generate.c	completions: an exchange runs one or more streams of the SDK
 *	answer.c	what a completion looks like in JSON
 *	logprobs.c	and its log probabilities
 *	params.c	what a request asks for
 *	tools.c		what it says of tools
 *	plan.c		what is to be known of the model before a chat begins
 *	parse.c		thoughts and calls in answers
 *	responses.c	/v1/responses
 *	texts.c		texts, tokens and the model
 *	asks.c		what waits for an answer of the service: asked on threads of their own
 *	keys.c		API keys, and what each may ask for (limits.c)
 *	live.c		what may change while it runs
 *	queue.c		answers that wait until the service has room
 *	watch.c		how the service is: asked on a thread of its own, so that /health never waits
 *	news.c		what it says of itself, as numbers; report.c: as JSON, for /status; history.c: of the last minutes
 *	page.c		the page at /, whose files are in page/
 *	metrics.c	the page of /metrics, with metrics_service.c
 *
 * It keeps nothing that its death could lose but its connections: answers belong to the verifier.
 */
#pragma once

#include "client/include/outrider.h"
#include "services/gateway/asks.h"
#include "services/gateway/keys.h"
#include "services/gateway/metrics.h"
#include "services/gateway/queue.h"
#include "services/gateway/watch.h"
#include "services/knobs/gateway.h"
#include "shared/base/rate.h"

#include <microhttpd.h>

struct daemon;
struct exchange;
struct choice;

enum { GATEWAY_BUCKETS = 1024 };

/* What tells one version of a file from another. */
struct keys_stamp {
	uint64_t inode, bytes, s, ns;
};

struct gateway {
	struct daemon *daemon;
	const struct gateway_config *config;
	struct MHD_Daemon *http;
	struct outrider *client;
	struct exchange *exchanges; /* those that have streams */
	struct choice *streams[GATEWAY_BUCKETS]; /* running streams, by uid */
	struct queue queue; /* answers that wait for their stream */
	struct connection *connections; /* all that are open */
	struct keys keys;
	struct keys_stamp keys_stamp; /* of the file that they were read from, or that was wrong */
	struct watch watch;
	struct asks asks;
	struct gateway_facts facts;
	struct metrics metrics;
	struct rate rate; /* of responses */
	uint64_t ticks;
};
