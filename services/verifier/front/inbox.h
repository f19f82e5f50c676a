/*
 * Requests that were taken from the socket and wait: for their text to be read, which may take a second, or for a place.
 * Clients take turns, so that one which sends many requests delays its own. A client is a process, however many connections
 * it opens; where the kernel does not tell which process that is, a connection. Loop thread.
 */
#pragma once

#include "services/verifier/front/request.h"
#include "shared/ipc/bus.h"

struct inbox_entry {
	struct inbox_entry *next; /* in the order of arrival */
	struct bus_address client;
	uint64_t uid, request_id, digest;
	uint32_t have, credit;
	bool returns; /* a session on the shelf comes back: there is nothing to read */
	uint8_t *packed; /* its Generate, until it was read */
	size_t packed_bytes;
	size_t bytes; /* that the entry holds: as much as its message, then what was made of it */
	uint64_t since_ns; /* when it came */
	uint64_t round; /* entries of lower rounds go first */
	bool read; /* request and input are filled in */
	struct session_request request;
	struct request_input input;
};

struct inbox {
	struct inbox_entry *first;
	uint32_t n;
	size_t bytes;
	uint64_t round; /* of the last entry that had its turn */
};

bool inbox_same_client(const struct bus_address *a, const struct bus_address *b);

/* Appends an entry with a copy of the request; generate NULL: a session on the shelf comes back. NULL without memory. */
struct inbox_entry *inbox_add(struct inbox *inbox, const struct bus_address *client, uint64_t uid,
	const Outrider__Generate *generate);
/* Makes request and input of the copy, which is gone then. As request_read. */
int inbox_read(struct inbox *inbox, struct inbox_entry *entry, const struct request_limits *limits,
	struct error *err);
void inbox_remove(struct inbox *inbox, struct inbox_entry *entry); /* and frees it */
void inbox_clear(struct inbox *inbox);

struct inbox_entry *inbox_find(const struct inbox *inbox, uint64_t uid); /* NULL: none */
/* The entry whose text is read next; NULL: none. Its round is the current one from then on. */
struct inbox_entry *inbox_unread(struct inbox *inbox);
/* How many entries are a client's; *bytes: of their messages. */
uint32_t inbox_count(const struct inbox *inbox, const struct bus_address *client, size_t *bytes);
