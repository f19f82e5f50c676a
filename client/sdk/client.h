/*
 * One connection to the verifier and the streams that use it. Everything runs in the caller's
 * thread, within the SDK's calls. client_pump is the only function that waits.
 */
#pragma once

#include "client/include/outrider.h"
#include "proto/envelope.pb-c.h"
#include "shared/base/error.h"

#include <sys/types.h>

/* When the descriptor's timer expires. */
enum client_alarm { ALARM_OFF, ALARM_NOW, ALARM_LATER };

enum { CLIENT_BUCKETS = 256 };

struct outrider {
	pid_t owner; /* the process that opened it; a child cannot use the ZeroMQ objects in it */
	void *zmq, *socket, *monitor;
	char runtime_dir[256];
	bool connected; /* by the last event of the monitor */
	bool reached; /* a process listens, but it need not have answered */
	bool answered; /* the service has answered at least once */
	uint32_t window;
	uint64_t first_ns, away_ns;
	uint64_t since_ns; /* when it was made, CLOCK_REALTIME */
	uint64_t pumped_ns; /* when client_pump last looked */
	uint64_t requests; /* counts the requests sent, and numbers them */
	struct outrider_stream *streams;
	struct outrider_stream *buckets[CLIENT_BUCKETS]; /* the same streams, by uid */
	uint32_t n_open; /* streams that have not ended */
	/* For ready.c: the streams that have an event for the caller, and the descriptor that shows
	 * it; -1: there is none, because it was not asked for. */
	struct outrider_stream *line, **line_end;
	int fd, timer;
	enum client_alarm alarm;
	/* For texts.c: the question that waits for its answer, its number, and the answer; NULL:
	 * none. */
	Outrider__Envelope *question, *answer;
	uint64_t question_id;
};

/* -EINVAL: client is NULL; -EPERM: it belongs to a parent process. */
int client_check(const struct outrider *client);
/* Handles what has arrived, after waiting at most timeout_ms for something, and tells each stream
 * how much time has passed. */
void client_pump(struct outrider *client, int timeout_ms);
/* For the client's streams, by uid. */
void client_add(struct outrider *client, struct outrider_stream *stream);
struct outrider_stream *client_find(struct outrider *client, uint64_t uid); /* NULL: none */
void client_remove(struct outrider_stream *stream);
/* Numbers the request and queues it for sending. */
int client_send(struct outrider *client, Outrider__Envelope *envelope, uint64_t *number);
