/*
 * One connection to the verifier and the streams that use it. Everything runs in the caller's thread, inside the SDK's
 * calls: client_pump is the only place that waits.
 */
#pragma once

#include "client/include/outrider.h"
#include "proto/envelope.pb-c.h"
#include "shared/base/error.h"

#include <sys/types.h>

/* When the timer of the descriptor expires. */
enum client_alarm { ALARM_OFF, ALARM_NOW, ALARM_LATER };

enum { CLIENT_BUCKETS = 256 };

struct outrider {
	pid_t owner; /* the process that opened it: what ZeroMQ has of it cannot be used by a child */
	void *zmq, *socket, *monitor;
	char runtime_dir[256];
	bool connected; /* by the last event of the monitor */
	bool reached; /* somebody listens, though perhaps he does nothing else */
	bool answered; /* the service has answered at least once */
	uint32_t window;
	uint64_t first_ns, away_ns;
	uint64_t since_ns; /* when it was made, CLOCK_REALTIME */
	uint64_t pumped_ns; /* when client_pump last looked */
	uint64_t requests; /* numbers of requests sent */
	struct outrider_stream *streams;
	struct outrider_stream *buckets[CLIENT_BUCKETS]; /* the same by their uids */
	uint32_t n_open; /* of them, those that have not ended */
	/* ready.c: streams that have something for the caller; the descriptor for it, -1: nobody asked for one. */
	struct outrider_stream *line, **line_end;
	int fd, timer;
	enum client_alarm alarm;
	/* texts.c: the question that waits for its answer, its number, and the answer; NULL: none. */
	Outrider__Envelope *question, *answer;
	uint64_t question_id;
};

/* -EINVAL: there is none; -EPERM: it belongs to another process, a parent. */
int client_check(const struct outrider *client);
/* Takes in whatever has arrived, after waiting at most timeout_ms for something, and gives each stream the time that
 * passed. */
void client_pump(struct outrider *client, int timeout_ms);
/* The client's streams, by their uids. */
void client_add(struct outrider *client, struct outrider_stream *stream);
struct outrider_stream *client_find(struct outrider *client, uint64_t uid); /* NULL: none */
void client_remove(struct outrider_stream *stream);
/* Numbers the request and queues it for sending. */
int client_send(struct outrider *client, Outrider__Envelope *envelope, uint64_t *number);
