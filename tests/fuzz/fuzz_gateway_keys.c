/* Any bytes as the file of API keys: it is read, or refused with a sentence. Each key that was read is allowed, and no other is. */
#include "services/gateway/keys.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_key(struct keys *keys, size_t i)
{
	char header[KEY_BYTES_MAX + 16];
	const struct key *first = keys->list[i];
	struct key *key;

	if (!first->text[0] || first->users != 1 || first->limits.requests_per_minute > LIMITS_MAX)
		abort();
	for (size_t k = i; k-- > 0;)
		if (strcmp(keys->list[k]->text, first->text) == 0)
			first = keys->list[k];
	snprintf(header, sizeof header, "Bearer %s", first->text);
	if (!keys_allow(keys, header, &key) || key != first)
		abort();
	keys_release(key);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static int fd = -1;
	char path[64], text[KEY_BYTES_MAX * 2];
	struct error err = {""};
	struct keys keys;
	struct key *key;

	if (fd < 0)
		fd = memfd_create("keys", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, 0) || pwrite(fd, data, bytes, 0) != (ssize_t)bytes)
		abort();
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	if (keys_read(&keys, path, &err) < 0) {
		if (!err.text[0] || keys.n > 0 || keys.list)
			abort();
		return 0;
	}
	if (keys.n == 0 || keys.n > KEYS_MAX)
		abort();
	for (size_t i = 0; i < keys.n; i++)
		check_key(&keys, i);
	/* The same bytes as a header. */
	snprintf(text, sizeof text, "%.*s", (int)(bytes < sizeof text ? bytes : sizeof text - 1),
		(const char *)data);
	if (keys_allow(&keys, text, &key)) {
		if (strncmp(key->text, text + strlen("Bearer "), sizeof key->text) != 0)
			abort();
		keys_release(key);
	}
	keys_free(&keys);
	return 0;
}
