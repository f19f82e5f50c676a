/*
 * The gateway: an HTTP server in front of the SDK, in a process of its own. It runs in one thread,
 * the daemon's loop, apart from the watch and the questions to the service, which have threads of
 * their own.
 *
 *	server.c	connections and requests, by libmicrohttpd
 *	routes.c	the paths, and the handler of each
 *	generate.c	completions: an exchange runs one or more streams of the SDK
 *	answer.c	the JSON of a completion
 *	logprobs.c	the JSON of its log probabilities
 *	audit.c		audits of answers
 *	params.c	the fields of a request
 *	tools.c		its fields about tools
 *	plan.c		what must be known of the model before a chat begins
 *	parse.c		thoughts and calls in answers
 *	thoughts.c	how many tokens were thoughts
 *	responses.c	/v1/responses
 *	texts.c		/tokenize, /detokenize, /apply-template, /props
 *	asks.c		questions to the service that wait for an answer, on threads of their own
 *	keys.c		API keys; limits.c: what each may ask for
 *	live.c		settings that change while it runs
 *	queue.c		answers that wait until the service has room
 *	watch.c		the state of the service, asked on a thread of its own, so that /health
 *			never waits
 *	news.c		that state as numbers; report.c: as JSON, for /status; history.c: the last
 *			minutes of it
 *	page.c		the page at /, whose files are in page/
 *	metrics.c	the page of /metrics, with metrics_service.c
 *
 * When the gateway dies, only its connections are lost: answers belong to the verifier.
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

/* Tells one version of a file from another. */
struct keys_stamp {
	uint64_t inode, bytes, s, ns;
};

struct gateway {
	struct daemon *daemon;
	const struct gateway_config *config;
	struct MHD_Daemon *http;
	struct outrider *client;
	struct exchange *exchanges; /* the exchanges with streams, running or queued */
	struct choice *streams[GATEWAY_BUCKETS]; /* running streams, by uid */
	double retry_s; /* after which the service may have room, as it said last; 0: unknown */
	struct queue queue; /* answers that wait for their stream */
	struct connection *connections; /* all open connections (server.c) */
	struct keys keys;
	struct keys_stamp keys_stamp; /* of the file that was read last, even if it was refused */
	struct watch watch;
	struct asks asks;
	struct gateway_facts facts;
	struct metrics metrics;
	struct rate rate; /* of responses */
	uint64_t ticks;
};
