/* Any bytes as a service's configuration file; the first byte says whose. What is accepted is in range, prints, and can be
 * said again on the command line. */
#include "services/expert-cache/config.h"
#include "services/policy-controller/settings.h"
#include "services/verifier/state/config.h"
#include "shared/base/config.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static union {
	struct verifier_config verifier;
	struct cache_config cache;
	struct settings settings;
	char drafter[4096];
} config;

/* Its header and the expert-cache's have enumerators of the same names. */
extern const struct config_key drafter_config_keys[];

static const struct config_key *keys_of(unsigned which)
{
	switch (which % 4) {
	case 0:
		return verifier_config_keys;
	case 1:
		return drafter_config_keys;
	case 2:
		return cache_config_keys;
	default:
		return settings_keys;
	}
}

static void check(const struct config_key *keys)
{
	for (const struct config_key *key = keys; key->name; key++) {
		const void *field = (const char *)&config + key->offset;
		int64_t integer;
		double number;
		switch (key->type) {
		case CONFIG_INT:
		case CONFIG_BYTES:
		case CONFIG_NS:
			memcpy(&integer, field, sizeof(integer));
			/* A word, as auto, stands for 0. */
			if (((double)integer < key->min || (double)integer > key->max) &&
				!(key->names && integer == 0))
				abort();
			break;
		case CONFIG_DOUBLE:
			memcpy(&number, field, sizeof(number));
			if (!(number >= key->min && number <= key->max))
				abort();
			break;
		case CONFIG_STRING:
			if (!memchr(field, 0, key->size))
				abort();
			break;
		case CONFIG_BOOL:
		case CONFIG_ENUM:
			break;
		}
	}
}

/* Each line by itself, as --set has it. */
static void assign_lines(const struct config_key *keys, char *text)
{
	struct error err = {""};
	char *rest = NULL;
	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
		if (config_set(line, "fuzz", keys, &config, &err) < 0 && !err.text[0])
			abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct error err = {""};
	if (bytes < 2)
		return 0;
	const struct config_key *keys = keys_of(data[0]);
	char *text = malloc(bytes);
	memcpy(text, data + 1, bytes - 1);
	text[bytes - 1] = '\0';
	FILE *file = fmemopen(text, bytes - 1, "r");
	config_defaults(keys, &config);
	if (config_read(file, "fuzz.conf", keys, &config, &err) < 0 &&
		(!err.text[0] || strchr(err.text, '\n')))
		abort();
	fclose(file);
	check(keys);
	assign_lines(keys, text);
	check(keys);
	if (keys == settings_keys)
		(void)settings_check(&config.settings, &err);
	else if (keys == cache_config_keys)
		(void)cache_config_check(&config.cache, &err);
	free(text);
	return 0;
}
