/*
 * API keys: a file with one key per line, which may be followed by its limits:
 *   KEY [requests_per_minute=N] [concurrent=N] [tokens_per_minute=N]
 * Empty lines and lines that begin with # are ignored.
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
	uint32_t users; /* references: the list and requests */
};

struct keys {
	struct key **list; /* [n], owned */
	size_t n; /* 0: no key is required */
};

/* path "": no keys. -errno with *err; -EINVAL for a file without any key. */
int keys_read(struct keys *keys, const char *path, struct error *err);
/* Takes the keys of *fresh, which is empty afterwards. A key that was there before keeps its
 * allowance, and gets the new limits. */
void keys_replace(struct keys *keys, struct keys *fresh);
/* True when an Authorization header ("Bearer KEY"; NULL: there is none) contains one of the keys.
 * *key: that key, which is then held; NULL when no key is required. To refuse a wrong key takes
 * equally long however much of it is right. */
bool keys_allow(const struct keys *keys, const char *authorization, struct key **key);
/* The number by which requests of a key share computed prefixes; 0 for NULL. */
uint64_t keys_domain(const struct key *key);
/* Releases a key that is held; key may be NULL. */
void keys_release(struct key *key);
void keys_free(struct keys *keys);
