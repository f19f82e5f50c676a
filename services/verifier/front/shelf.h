/*
 * Sessions that gave their places up: what their pages held, kept in this process for clients that come back. Such a session
 * is computed again from its tokens, and so goes on with the same ones. The oldest are dropped beyond LIMIT_SHELF_SESSIONS and
 * LIMIT_SHELF_BYTES. Loop thread.
 */
#pragma once

#include "services/verifier/state/slot.h"
#include "shared/ipc/bus.h"

struct shelved {
	struct shelved *next; /* in the order in which they came */
	uint64_t uid;
	/* As its client had it last. */
	struct bus_address client;
	bool attached;
	bool returning; /* its client has asked for it: it waits for a place, and is not dropped */
	uint64_t request_id;
	uint32_t sent, credit;
	uint32_t restarts;
	struct slot_usage usage;
	struct stop_match *match; /* what its slot had */
	struct constraint *constraint;
	uint64_t since_ns;
	size_t bytes;
	struct session_page *page; /* as journal_keep makes it */
};

struct shelf {
	struct shelved *first;
	uint32_t n;
	size_t bytes;
	/* Called before a session is dropped that nobody has asked for; NULL: nobody is. */
	void (*dropped)(void *arg, const struct shelved *kept);
	void *arg;
};

/* A copy of the page, which stays as it is; NULL without memory. */
struct shelved *shelf_put(struct shelf *shelf, const struct sessions_header *header,
	const struct session_page *page, struct session_page *shared);
struct shelved *shelf_find(const struct shelf *shelf, uint64_t uid); /* NULL: none */
void shelf_remove(struct shelf *shelf, struct shelved *kept); /* and frees it */
/* Its client had asked for it, and is gone again. */
void shelf_waits_again(struct shelved *kept);
/* Drops those that nobody has asked for in this time. */
void shelf_expire(struct shelf *shelf, uint64_t now_ns, uint64_t timeout_ns);
void shelf_clear(struct shelf *shelf);
