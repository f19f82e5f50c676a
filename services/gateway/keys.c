#include "services/gateway/keys.h"

#include "shared/base/checksum.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char blank[] = " \t";

static int take_limit(
	struct key *key, const char *path, size_t number, const char *word, struct error *err)
{
	uint32_t *const values[LIMITS_KINDS] = {
		[LIMITS_REQUESTS] = &key->limits.requests_per_minute,
		[LIMITS_CONCURRENT] = &key->limits.concurrent,
		[LIMITS_TOKENS] = &key->limits.tokens_per_minute,
	};
	size_t n = strcspn(word, "=");

	for (size_t i = LIMITS_NONE + 1; i < LIMITS_KINDS; i++) {
		const char *value = word + n + 1;

		if (word[n] != '=' || strlen(limits_names[i]) != n ||
			memcmp(word, limits_names[i], n) != 0)
			continue;
		long limit = strspn(value, "0123456789") == strlen(value) && strlen(value) <= 10
				     ? strtol(value, NULL, 10)
				     : 0;
		if (limit < 1 || limit > LIMITS_MAX)
			return error_set(err, EINVAL, "%s: line %zu: %s: expected 1 to %d", path,
				number, limits_names[i], LIMITS_MAX);
		*values[i] = (uint32_t)limit;
		return 0;
	}
	return error_set(err, EINVAL,
		"%s: line %zu: behind a key, expected requests_per_minute=N, concurrent=N or "
		"tokens_per_minute=N",
		path, number);
}

static int take_line(
	struct keys *keys, const char *path, size_t number, char *line, struct error *err)
{
	char *rest, *word;
	int code = 0;

	line[strcspn(line, "\r\n")] = '\0';
	if (!*line || line[0] == '#')
		return 0;
	word = strtok_r(line, blank, &rest);
	if (!word)
		return 0;
	if (strlen(word) >= KEY_BYTES_MAX)
		return error_set(err, EINVAL, "%s: line %zu: a key has at most %d bytes", path,
			number, KEY_BYTES_MAX - 1);
	if (keys->n == KEYS_MAX)
		return error_set(err, EINVAL, "%s: more than %d keys", path, KEYS_MAX);
	struct key *key = calloc(1, sizeof *key);
	if (!key)
		return error_set(err, ENOMEM, "no memory for the keys");
	snprintf(key->text, sizeof key->text, "%s", word);
	key->users = 1;
	keys->list[keys->n++] = key;
	while (code == 0 && (word = strtok_r(NULL, blank, &rest)) != NULL)
		code = take_limit(key, path, number, word, err);
	return code;
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
	keys->list = calloc(KEYS_MAX, sizeof(struct key *));
	if (!keys->list) {
		fclose(file);
		return error_set(err, ENOMEM, "no memory for the keys");
	}
	while (code == 0 && getline(&line, &room, file) >= 0)
		code = take_line(keys, path, ++number, line, err);
	if (code == 0 && keys->n == 0)
		code = error_set(err, EINVAL, "%s: it has no key", path);
	free(line);
	fclose(file);
	if (code < 0)
		keys_free(keys);
	return code;
}

void keys_replace(struct keys *keys, struct keys *fresh)
{
	for (size_t i = 0; i < fresh->n; i++)
		for (size_t j = 0; j < keys->n; j++) {
			struct key *old = keys->list[j], *new = fresh->list[i];

			if (strcmp(old->text, new->text) != 0)
				continue;
			old->limits = new->limits;
			keys->list[j] = new;
			fresh->list[i] = old;
			break;
		}
	keys_free(keys);
	*keys = *fresh;
	*fresh = (struct keys){0};
}

bool keys_allow(const struct keys *keys, const char *authorization, struct key **key)
{
	static const char scheme[] = "Bearer ";
	char given[KEY_BYTES_MAX] = "";
	size_t found = 0; /* index + 1 */

	*key = NULL;
	if (keys->n == 0)
		return true;
	if (!authorization || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0 ||
		strlen(authorization + sizeof scheme - 1) >= KEY_BYTES_MAX)
		return false;
	/* All keys and all bytes are compared, so the time does not show how much of a key was
	 * right. */
	memcpy(given, authorization + sizeof scheme - 1, strlen(authorization + sizeof scheme - 1));
	for (size_t i = 0; i < keys->n; i++) {
		unsigned different = 0;

		for (size_t b = 0; b < KEY_BYTES_MAX; b++)
			different |=
				(unsigned char)given[b] ^ (unsigned char)keys->list[i]->text[b];
		/* All ones if no byte differs; without a branch. */
		size_t same = (size_t)0 - (size_t)((different - 1) >> (8 * sizeof different - 1));
		found |= same & (i + 1) & ((size_t)0 - (size_t)(found == 0));
	}
	if (found == 0)
		return false;
	*key = keys->list[found - 1];
	(*key)->users++;
	return true;
}

uint64_t keys_domain(const struct key *key)
{
	return key ? checksum(1, key->text, sizeof key->text) : 0;
}

void keys_release(struct key *key)
{
	if (key && --key->users == 0)
		free(key);
}

void keys_free(struct keys *keys)
{
	for (size_t i = 0; i < keys->n; i++)
		keys_release(keys->list[i]);
	free(keys->list);
	*keys = (struct keys){0};
}
