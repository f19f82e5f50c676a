/*
 * Sessions that gave their places up: the content of their pages, kept in this process until their
 * clients come back. Such a session is computed again from its tokens, so it goes on with the same
 * ones. Beyond LIMIT_SHELF_SESSIONS and LIMIT_SHELF_BYTES the oldest are dropped. Loop thread.
 */
#pragma once

#include "services/verifier/state/slot.h"
#include "shared/ipc/bus.h"

struct shelved {
	struct shelved *next; /* in the order in which they came */
	uint64_t uid;
	/* The state of its client when it was shelved. */
	struct bus_address client;
	bool attached;
	bool returning; /* its client has asked for it: it waits for a place, and is not dropped */
	uint64_t request_id;
	uint32_t sent, credit;
	uint32_t restarts;
	struct slot_usage usage;
	struct stop_match *match; /* those of its slot */
	struct constraint *constraint;
	uint64_t since_ns;
	size_t bytes;
	struct session_page *page; /* made by journal_keep */
};

struct shelf {
	struct shelved *first;
	uint32_t n;
	size_t bytes;
	/* Called before a session is dropped for which no client has asked; NULL: no call. */
	void (*dropped)(void *arg, const struct shelved *kept);
	void *arg;
};

/* Keeps a copy of the page, which is unchanged; NULL when memory is exhausted. */
struct shelved *shelf_put(struct shelf *shelf, const struct sessions_header *header,
	const struct session_page *page, struct session_page *shared);
struct shelved *shelf_find(const struct shelf *shelf, uint64_t uid); /* NULL: none */
void shelf_remove(struct shelf *shelf, struct shelved *kept); /* and frees it */
/* Call when the client that had asked for it is gone again. */
void shelf_waits_again(struct shelved *kept);
/* Drops the sessions for which no client has asked in this time; asleep_ns: for those that were told
 * to sleep. */
void shelf_expire(struct shelf *shelf, uint64_t now_ns, uint64_t timeout_ns, uint64_t asleep_ns);
void shelf_clear(struct shelf *shelf);
