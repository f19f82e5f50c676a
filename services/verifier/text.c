#include "services/verifier/text.h"

#include <string.h>

void text_stops_init(struct text_stops *stops, const char (*text)[LIMIT_STOP_BYTES], uint32_t n)
{
	stops->n = n;
	stops->text = text;
	for (uint32_t s = 0; s < n; s++) {
		const char *pattern = text[s];
		uint8_t border = 0;

		stops->bytes[s] = (uint8_t)strlen(pattern);
		stops->fail[s][0] = 0;
		for (uint8_t i = 1; i < stops->bytes[s]; i++) {
			while (border > 0 && pattern[i] != pattern[border])
				border = stops->fail[s][border - 1];
			if (pattern[i] == pattern[border])
				border++;
			stops->fail[s][i] = border;
		}
	}
}

void text_stream_init(struct text_stream *stream)
{
	memset(stream, 0, sizeof(*stream));
	stream->stop = -1;
}

static void release(struct text_stream *stream, size_t n, char *out, size_t *n_out)
{
	if (n == 0)
		return;
	if (out != NULL) {
		memcpy(out + *n_out, stream->held, n);
		*n_out += n;
	}
	stream->n_held = (uint8_t)(stream->n_held - n);
	memmove(stream->held, stream->held + n, stream->n_held);
}

/* Advances every pattern by one byte; returns the longest one that is now complete, or -1. */
static int match(
	struct text_stream *stream, const struct text_stops *stops, char byte, uint8_t *longest)
{
	int hit = -1;

	*longest = 0;
	for (uint32_t s = 0; s < stops->n; s++) {
		const char *pattern = stops->text[s];
		uint8_t m = stream->matched[s];

		while (m > 0 && pattern[m] != byte)
			m = stops->fail[s][m - 1];
		if (pattern[m] == byte)
			m++;
		stream->matched[s] = m;
		if (m > *longest)
			*longest = m;
		if (m == stops->bytes[s] && (hit < 0 || m > stops->bytes[hit]))
			hit = (int)s;
	}
	return hit;
}

bool text_feed(struct text_stream *stream, const struct text_stops *stops, const char *piece,
	size_t bytes, char *out, size_t *n_out)
{
	if (stream->stop >= 0)
		return true;
	if (stops->n == 0) {
		if (out != NULL) {
			memcpy(out + *n_out, piece, bytes);
			*n_out += bytes;
		}
		return false;
	}
	for (size_t i = 0; i < bytes; i++) {
		uint8_t longest;
		int hit = match(stream, stops, piece[i], &longest);

		stream->held[stream->n_held++] = piece[i];
		if (hit >= 0) {
			release(stream, (size_t)(stream->n_held - stops->bytes[hit]), out, n_out);
			stream->n_held = 0;
			stream->stop = hit;
			return true;
		}
		release(stream, (size_t)(stream->n_held - longest), out, n_out);
	}
	return false;
}
