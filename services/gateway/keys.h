/* API keys: a file with one on each line. Empty lines and lines that begin with # are left out. */
#pragma once

#include "shared/base/error.h"

#include <stdbool.h>
#include <stddef.h>

enum { KEYS_MAX = 1024, KEY_BYTES_MAX = 256 };

struct keys {
	char (*list)[KEY_BYTES_MAX]; /* [n], owned */
	size_t n; /* 0: no key is asked for */
};

/* path "": none. -errno with *err; a file without any key is -EINVAL. */
int keys_read(struct keys *keys, const char *path, struct error *err);
/* Whether an Authorization header ("Bearer KEY"; NULL: there is none) has one of them. A wrong key takes equally long
 * to refuse, however much of it is right. */
bool keys_allow(const struct keys *keys, const char *authorization);
void keys_free(struct keys *keys);
