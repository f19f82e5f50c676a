/*
 * Requests that were taken from the socket and wait: for their text to be read, which may take a second, or for a place.
 * Clients take turns, so that one which sends many requests delays its own, and the texts of a client are read in the order in which
 * they came. A client is a process, however many connections it opens; where the kernel does not tell which process that is, a
 * connection. Loop thread.
 */
#pragma once

#include "services/verifier/front/reader.h"
#include "shared/ipc/bus.h"

struct inbox_entry {
	struct inbox_entry *next; /* in the order of arrival */
	struct bus_address client;
	uint64_t uid, request_id, digest;
	uint32_t have, credit;
	struct reading *
		reading; /* NULL: a session on the shelf comes back, and there is nothing to read */
	bool begun; /* a lane has the reading, or had it */
	bool read; /* and has done with it */
	uint64_t sender; /* entries of one client that were there together have the same number */
	uint32_t behind; /* how many of its client's, that came before it, are not read yet */
	size_t bytes; /* that the entry holds: as much as its message, then what was made of it */
	uint64_t round; /* entries of lower rounds go first */
};

struct inbox {
	struct inbox_entry *first;
	uint32_t n, n_questions; /* questions count in n */
	size_t bytes;
	uint64_t round; /* of the last entry that had its turn */
	uint64_t senders; /* the newest one's number */
};

bool inbox_same_client(const struct bus_address *a, const struct bus_address *b);

/* Appends an entry with a copy of the request; generate NULL: a session on the shelf comes back. NULL without memory. */
struct inbox_entry *inbox_add(struct inbox *inbox, const struct bus_address *client, uint64_t uid,
	const Outrider__Generate *generate);
/* Appends a question about texts or the model: it waits for a lane and for nothing else. NULL without memory. */
struct inbox_entry *inbox_ask(struct inbox *inbox, const struct bus_address *client,
	const Outrider__TextRequest *question);
/* Its reading has come back. */
void inbox_read(struct inbox *inbox, struct inbox_entry *entry);
/* And frees it; a reading that a lane has is left to who takes it from there, its entry NULL. */
void inbox_remove(struct inbox *inbox, struct inbox_entry *entry);
void inbox_clear(struct inbox *inbox);

struct inbox_entry *inbox_find(const struct inbox *inbox, uint64_t uid); /* NULL: none */
/* The entry whose text this lane reads next; NULL: none. Its round is the current one from then on. */
struct inbox_entry *inbox_unread(struct inbox *inbox, enum reader_lane lane);
/* How many requests are a client's; *bytes: of its messages, questions too. */
uint32_t inbox_count(const struct inbox *inbox, const struct bus_address *client, size_t *bytes);
