/*
 * API keys: a file with one on each line, and behind it what may be asked for with it:
 *	KEY [requests_per_minute=N] [concurrent=N] [tokens_per_minute=N]
 * Empty lines and lines that begin with # are left out.
 */
#pragma once

#include "services/gateway/limits.h"
#include "shared/base/error.h"

#include <stdbool.h>
#include <stddef.h>

enum { KEYS_MAX = 1024, KEY_BYTES_MAX = 256 };

struct key {
	char text[KEY_BYTES_MAX]; /* the rest is 0 */
	struct limits limits;
	struct allowance left;
	uint32_t users; /* who holds it: the list, and requests */
};

struct keys {
	struct key **list; /* [n], owned */
	size_t n; /* 0: no key is asked for */
};

/* path "": none. -errno with *err; a file without any key is -EINVAL. */
int keys_read(struct keys *keys, const char *path, struct error *err);
/* Takes the keys of *fresh, which is then empty. One that was there before keeps what it has left and has the new limits. */
void keys_replace(struct keys *keys, struct keys *fresh);
/* Whether an Authorization header ("Bearer KEY"; NULL: there is none) has one of them, and which: *key is then held; NULL where no
 * key is asked for. A wrong key takes equally long to refuse, however much of it is right. */
bool keys_allow(const struct keys *keys, const char *authorization, struct key **key);
/* Lets go of a key that is held; NULL is none. */
void keys_release(struct key *key);
void keys_free(struct keys *keys);
