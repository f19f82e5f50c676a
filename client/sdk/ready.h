/*
 * Which streams of a client have something for the caller, each in its turn, and the descriptor that says so: an epoll that has the
 * descriptors of both ZeroMQ sockets and a timer in it. The timer stands for everything that no descriptor shows: events that
 * wait in streams, messages that ZeroMQ has taken in already, and silence, which has to be looked at now and then.
 */
#pragma once

#include "client/sdk/client.h"

/* An event of the stream, or its failure, waits. Once more does no harm. */
void ready_add(struct outrider_stream *stream);
/* The stream whose turn it is, NULL: none. It goes to the end of the line when ready_add names it again. */
struct outrider_stream *ready_take(struct outrider *client);
/* The stream is about to be freed. */
void ready_remove(struct outrider_stream *stream);

/* -EMFILE and the like with the reason. */
int ready_open(struct outrider *client, struct error *err);
void ready_close(struct outrider *client);
/* The timer has done its work: what it stood for is looked at now. */
void ready_look(struct outrider *client);
/* Before a call of the SDK returns: the descriptor is readable if something waits, and will be when silence has to be looked at. */
void ready_arm(struct outrider *client);
