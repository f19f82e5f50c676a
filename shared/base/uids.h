/*
 * From a session's uid to its index: a table with open addressing that is at most half full. Plain
 * memory, all zero when empty; the caller serialises.
 */
#pragma once

#include "shared/base/limits.h"

enum { UIDS_PLACES = 2 * LIMIT_SESSIONS };
static_assert((UIDS_PLACES & (UIDS_PLACES - 1)) == 0, "places are masked");

struct uids {
	struct uids_place {
		uint64_t uid; /* 0: free */
		uint32_t index;
	} places[UIDS_PLACES];
};

/* Adds a uid, or changes the index of one that is there. At most LIMIT_SESSIONS uids at a time; a
 * uid is never 0. */
void uids_put(struct uids *uids, uint64_t uid, uint32_t index);
/* The index of a uid, or -1. */
int uids_find(const struct uids *uids, uint64_t uid);
void uids_remove(struct uids *uids, uint64_t uid);
