/* Any bytes on a connection to a bus server: however they are cut into reads, they mean the same, nothing is read beyond them, and
 * what is handed out keeps within its bounds. */
#include "shared/base/limits.h"
#include "shared/ipc/zmtp.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static uint64_t mix(uint64_t hash, const void *data, size_t bytes)
{
	const uint8_t *at = data;

	for (size_t i = 0; i < bytes; i++)
		hash = (hash ^ at[i]) * 0x100000001b3u;
	return hash;
}

static uint64_t event_hash(uint64_t hash, enum zmtp_what what, const struct zmtp_event *event)
{
	hash = mix(hash, &what, sizeof what);
	if (what == ZMTP_BROKEN)
		return hash;
	hash = mix(hash, &event->bytes, sizeof event->bytes);
	hash = mix(hash, &event->frames, sizeof event->frames);
	return event->data ? mix(hash, event->data, (size_t)event->bytes) : hash;
}

static void check(enum zmtp_what what, const struct zmtp_event *event, const uint8_t *data,
	size_t bytes, size_t used)
{
	uint8_t pong[ZMTP_HEADER_BYTES + 5 + ZMTP_PING_BYTES];

	if (used > bytes || (what == ZMTP_MORE && event->want <= bytes - used))
		abort();
	if (what == ZMTP_BROKEN && !event->why)
		abort();
	if (event->data &&
		(event->data < data || event->bytes > (size_t)(data + used - event->data)))
		abort();
	if (what == ZMTP_PING && zmtp_pong(pong, event->data, (size_t)event->bytes) > sizeof pong)
		abort();
	if (what == ZMTP_MESSAGE &&
		(event->frames == 0 || event->bytes > LIMIT_MESSAGE_CUT ||
			(event->data &&
				(event->frames != 1 || event->bytes > LIMIT_MESSAGE_BYTES)) ||
			(!event->data && event->frames == 1 &&
				event->bytes <= LIMIT_MESSAGE_BYTES)))
		abort();
}

/* Reads of at most so many bytes, into memory of exactly what waits: a sanitizer sees a look beyond it. */
static uint64_t read_all(const uint8_t *data, size_t bytes, size_t piece)
{
	struct zmtp zmtp = {0};
	size_t begin = 0, end = 0;
	uint64_t hash = 0xcbf29ce484222325u;

	for (;;) {
		size_t n = end - begin, used;
		uint8_t *waits = malloc(n ? n : 1);
		struct zmtp_event event;
		enum zmtp_what what;

		if (!waits)
			abort();
		memcpy(waits, data + begin, n);
		what = zmtp_step(&zmtp, waits, n, &used, &event);
		check(what, &event, waits, n, used);
		if (what != ZMTP_MORE)
			hash = event_hash(hash, what, &event);
		free(waits);
		begin += used;
		if (what == ZMTP_BROKEN || (what == ZMTP_MORE && end == bytes))
			return hash;
		if (what == ZMTP_MORE)
			end += bytes - end < piece ? bytes - end : piece;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	uint64_t whole = read_all(data, bytes, bytes ? bytes : 1);

	for (size_t piece = 1; piece < 80; piece = 2 * piece + 1)
		if (read_all(data, bytes, piece) != whole)
			abort();
	return 0;
}
