/*
 * Requests that were read from the socket and wait: for their text to be read, which may take a
 * second, or for a place. Clients take turns, so a client that sends many requests delays only its
 * own; a client's texts are read in the order in which they came. A client is a process, however
 * many connections it opens; where the kernel does not tell which process has a connection, each
 * connection counts as a client. Loop thread.
 */
#pragma once

#include "services/verifier/front/reader.h"
#include "shared/ipc/bus.h"

struct inbox_entry {
	struct inbox_entry *next; /* in the order of arrival */
	struct bus_address client;
	uint64_t uid, request_id, digest;
	uint32_t have, credit;
	/* NULL: a session on the shelf comes back, so there is no text to read */
	struct reading *reading;
	bool begun; /* a lane has the reading, or had it */
	bool read; /* the lane has finished it */
	/* entries of one client that are there at the same time have the same number */
	uint64_t sender;
	uint32_t behind; /* how many earlier ones of its client are not read yet */
	size_t bytes; /* memory of the entry: its message, later what was made of it */
	uint64_t round; /* entries of lower rounds come first */
};

struct inbox {
	struct inbox_entry *first;
	uint32_t n, n_questions; /* n includes the questions */
	size_t bytes;
	uint64_t round; /* of the last entry that had a turn */
	uint64_t senders; /* the newest one's number */
};

bool inbox_same_client(const struct bus_address *a, const struct bus_address *b);

/* Appends an entry with a copy of the request; generate NULL: a session on the shelf comes back.
 * NULL when memory is exhausted. */
struct inbox_entry *inbox_add(struct inbox *inbox, const struct bus_address *client, uint64_t uid,
	const Outrider__Generate *generate);
/* Appends a question about texts or the model, which waits for a lane only. NULL when memory is
 * exhausted. */
struct inbox_entry *inbox_ask(struct inbox *inbox, const struct bus_address *client,
	const Outrider__TextRequest *question);
/* Call when its reading has come back. */
void inbox_read(struct inbox *inbox, struct inbox_entry *entry);
/* Removes and frees the entry. A reading that a lane has is not freed here, but by the code that
 * takes it from there and finds its entry NULL. */
void inbox_remove(struct inbox *inbox, struct inbox_entry *entry);
void inbox_clear(struct inbox *inbox);

struct inbox_entry *inbox_find(const struct inbox *inbox, uint64_t uid); /* NULL: none */
/* The entry whose text this lane should read next; NULL: none. Its round becomes the current one.
 */
struct inbox_entry *inbox_unread(struct inbox *inbox, enum reader_lane lane);
/* How many requests the client has here; *bytes: the size of its messages, questions included. */
uint32_t inbox_count(const struct inbox *inbox, const struct bus_address *client, size_t *bytes);
