/* Any bytes as a routing trace and as a profile. The first byte decides which. A trace that is accepted is replayed. */
#include "bench/src/cache_quality.h"
#include "bench/src/cache_replay.h"
#include "shared/spec/profile.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Small ones only: what a replay takes grows with the shape, whatever the passes are. */
static void replay(const struct cache_trace *trace)
{
	struct replay_result result;
	struct trace_quality quality[HINT_SOURCES + 1];
	struct error err = {""};
	if (trace->n_layers * trace->n_experts > 4096 || trace->n_uses > 4096)
		return;
	if (cache_trace_quality(trace, quality, &err) < 0)
		abort();
	for (unsigned s = 0; s <= HINT_SOURCES; s++)
		if (quality[s].found > quality[s].used || quality[s].found > quality[s].hinted)
			abort();
	for (size_t i = 0; cache_policies[i]; i++) {
		struct replay_options options = {.policy = cache_policies[i],
			.n_slots = cache_replay_slots_min(trace) + 1,
			.link = {1e9, 1000}};
		if (cache_replay(trace, &options, &result, &err) < 0)
			abort();
	}
}

/* Checksums keep a fuzzer out: the right one is put in. */
static uint64_t checksum(const unsigned char *data, size_t bytes)
{
	uint64_t h = 0xcbf29ce484222325u;
	for (size_t i = 0; i < bytes; i++)
		h = (h ^ data[i]) * 0x100000001b3u;
	return h;
}

static void as_trace(const uint8_t *data, size_t bytes)
{
	struct cache_trace trace;
	struct error err = {""};
	unsigned char *copy = malloc(bytes + 8);
	if (copy == NULL)
		return;
	for (size_t i = 0; i < bytes; i++)
		copy[i] = data[i];
	uint64_t hash = checksum(copy, bytes);
	for (int i = 0; i < 8; i++)
		copy[bytes + (size_t)i] = (unsigned char)(hash >> (8 * i));
	if (cache_trace_parse(copy, bytes + 8, &trace, &err) == 0) {
		replay(&trace);
		cache_trace_exit(&trace);
	} else if (err.text[0] == '\0') {
		abort();
	}
	free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	if (bytes == 0)
		return 0;
	if (data[0] != 'p') {
		as_trace(data + 1, bytes - 1);
		return 0;
	}
	uint64_t *uses = NULL;
	struct error err = {""};
	if (profile_parse((const char *)data + 1, bytes - 1, 6, 32, &uses, &err) == 0)
		free(uses);
	else if (err.text[0] == '\0')
		abort();
	return 0;
}
