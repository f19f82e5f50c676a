/*
 * Which streams of a client have an event for the caller, in what order they are served, and the
 * descriptor that shows it: an epoll of the descriptors of both ZeroMQ sockets and a timer. The
 * timer stands for everything that those do not show: events that wait in streams, messages that
 * ZeroMQ has received already, and silence, which has to be checked from time to time.
 */
#pragma once

#include "client/sdk/client.h"

/* Call when an event of the stream, or its failure, waits. May be called again while it is in the
 * line. */
void ready_add(struct outrider_stream *stream);
/* Takes the first stream of the line, NULL: there is none. ready_add puts it at the end again. */
struct outrider_stream *ready_take(struct outrider *client);
/* Call before the stream is freed. */
void ready_remove(struct outrider_stream *stream);

/* -EMFILE and similar, with the reason. */
int ready_open(struct outrider *client, struct error *err);
void ready_close(struct outrider *client);
/* Stops the timer, because what it stood for is looked at now. */
void ready_look(struct outrider *client);
/* Call before a function of the SDK returns. Makes the descriptor readable now if something waits,
 * otherwise when silence has to be checked. */
void ready_arm(struct outrider *client);
