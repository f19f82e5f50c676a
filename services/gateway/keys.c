#include "services/gateway/keys.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int take_line(
	struct keys *keys, const char *path, size_t number, char *line, struct error *err)
{
	size_t n = strcspn(line, "\r\n");

	line[n] = '\0';
	if (n == 0 || line[0] == '#')
		return 0;
	if (n >= KEY_BYTES_MAX)
		return error_set(err, EINVAL, "%s: line %zu: a key has at most %d bytes", path,
			number, KEY_BYTES_MAX - 1);
	if (keys->n == KEYS_MAX)
		return error_set(err, EINVAL, "%s: more than %d keys", path, KEYS_MAX);
	memset(keys->list[keys->n], 0, KEY_BYTES_MAX);
	memcpy(keys->list[keys->n++], line, n);
	return 0;
}

int keys_read(struct keys *keys, const char *path, struct error *err)
{
	char *line = NULL;
	size_t room = 0, number = 0;
	int code = 0;

	*keys = (struct keys){0};
	if (!*path)
		return 0;
	FILE *file = fopen(path, "re");
	if (!file)
		return error_set(err, errno, "keys: %s: %s", path, strerror(errno));
	keys->list = calloc(KEYS_MAX, sizeof *keys->list);
	if (!keys->list)
		code = error_set(err, ENOMEM, "no memory for the keys");
	while (code == 0 && getline(&line, &room, file) >= 0)
		code = take_line(keys, path, ++number, line, err);
	if (code == 0 && keys->n == 0)
		code = error_set(err, EINVAL, "%s: it has no key", path);
	free(line);
	fclose(file);
	return code;
}

bool keys_allow(const struct keys *keys, const char *authorization)
{
	static const char scheme[] = "Bearer ";
	char given[KEY_BYTES_MAX] = "";
	bool found = false;

	if (keys->n == 0)
		return true;
	if (!authorization || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0 ||
		strlen(authorization + sizeof scheme - 1) >= KEY_BYTES_MAX)
		return false;
	/* All keys and all bytes are looked at: the time tells nothing of how much of a key was right. */
	memcpy(given, authorization + sizeof scheme - 1, strlen(authorization + sizeof scheme - 1));
	for (size_t i = 0; i < keys->n; i++) {
		unsigned char different = 0;

		for (size_t b = 0; b < KEY_BYTES_MAX; b++)
			different |= (unsigned char)((unsigned char)given[b] ^
						     (unsigned char)keys->list[i][b]);
		found |= different == 0;
	}
	return found;
}

void keys_free(struct keys *keys)
{
	free(keys->list);
	*keys = (struct keys){0};
}
