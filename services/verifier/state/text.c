#include "services/verifier/state/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A state is a prefix of some stop string; state 0 is the empty one. States are numbered by length,
 * and those that extend the same state by one byte have successive numbers. */
struct text_stops {
	uint32_t n, n_states;
	char *text;
	uint16_t *at; /* [n] where each string begins in text */
	uint16_t *depth; /* [n_states] length in bytes */
	/* [n_states + 1] the first state that extends this one by a byte; the last is before the
	 * first of the next state */
	uint16_t *children;
	uint16_t *fail; /* the longest other state that is a suffix of this one */
	/* the longest other stop string that is a suffix of it, as a state; 0: none */
	uint16_t *shorter;
	int16_t *whole; /* index of the stop string that it equals, or -1 */
	uint8_t *byte; /* its last byte */
};
static_assert(LIMIT_STOPS_BYTES < UINT16_MAX && LIMIT_STOPS < INT16_MAX, "states fit 16 bits");

enum {
	HIDDEN = 1, /* not to be shown */
	INSIDE = 2, /* no match may begin here, in the middle of a control token */
};

/* For the construction: the strings in sorted order, and for each state the range of those that
 * begin with it. */
struct build {
	const struct text_stops *stops;
	uint16_t *order;
	struct {
		uint16_t from, to;
	} * range;
};

static int compare(const void *a, const void *b, void *arg)
{
	const struct text_stops *stops = arg;
	uint16_t x = *(const uint16_t *)a, y = *(const uint16_t *)b;
	int order = strcmp(stops->text + stops->at[x], stops->text + stops->at[y]);
	return order ? order : (x > y) - (x < y);
}

static uint8_t byte_at(const struct build *b, uint32_t i, uint32_t depth)
{
	return (uint8_t)b->stops->text[b->stops->at[b->order[i]] + depth];
}

static uint32_t child(const struct text_stops *stops, uint32_t state, uint8_t byte)
{
	uint32_t low = stops->children[state], high = stops->children[state + 1];
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (stops->byte[middle] < byte)
			low = middle + 1;
		else
			high = middle;
	}
	return low < stops->children[state + 1] && stops->byte[low] == byte ? low : 0;
}

/* Adds the states that extend this one by a byte. */
static void add_children(struct text_stops *stops, struct build *b, uint32_t state)
{
	uint32_t i = b->range[state].from, to = b->range[state].to, depth = stops->depth[state];
	stops->whole[state] = -1;
	/* Of equal strings the first counts. */
	if (state && byte_at(b, i, depth) == '\0')
		stops->whole[state] = (int16_t)b->order[i];
	while (i < to && byte_at(b, i, depth) == '\0')
		i++;
	stops->children[state] = (uint16_t)stops->n_states;
	while (i < to) {
		uint32_t s = stops->n_states++;
		stops->byte[s] = byte_at(b, i, depth);
		stops->depth[s] = (uint16_t)(depth + 1);
		b->range[s].from = (uint16_t)i;
		while (i < to && byte_at(b, i, depth) == stops->byte[s])
			i++;
		b->range[s].to = (uint16_t)i;
	}
}

static void link_children(struct text_stops *stops, uint32_t state)
{
	for (uint32_t s = stops->children[state]; s < stops->children[state + 1]; s++) {
		uint32_t f = stops->fail[state], next = 0;
		while (state && !(next = child(stops, f, stops->byte[s])) && f)
			f = stops->fail[f];
		stops->fail[s] = (uint16_t)next;
		stops->shorter[s] = stops->whole[next] >= 0 ? (uint16_t)next : stops->shorter[next];
	}
}

static void build(struct text_stops *stops, struct build *b)
{
	for (uint32_t i = 0; i < stops->n; i++)
		b->order[i] = (uint16_t)i;
	qsort_r(b->order, stops->n, sizeof(*b->order), compare, stops);
	b->range[0].from = 0;
	b->range[0].to = (uint16_t)stops->n;
	stops->n_states = 1;
	for (uint32_t s = 0; s < stops->n_states; s++)
		add_children(stops, b, s);
	stops->children[stops->n_states] = (uint16_t)stops->n_states;
	for (uint32_t s = 0; s < stops->n_states; s++)
		link_children(stops, s);
}

int text_stops_create(const char *packed, uint32_t n, struct text_stops **out)
{
	size_t bytes = 0;

	*out = NULL;
	if (n == 0)
		return 0;
	for (uint32_t i = 0; i < n; i++)
		bytes += strlen(packed + bytes) + 1;
	/* There are no more states than bytes; one more entry ends the last range. */
	size_t states = bytes + 2;
	struct text_stops *stops = calloc(1, sizeof(*stops));
	struct build b = {.stops = stops,
		.order = calloc(n, sizeof(*b.order)),
		.range = calloc(states, sizeof(*b.range))};
	int rc = -ENOMEM;

	if (stops != NULL) {
		stops->n = n;
		stops->text = malloc(bytes);
		stops->at = calloc(n, sizeof(*stops->at));
		stops->depth = calloc(states, sizeof(*stops->depth));
		stops->children = calloc(states, sizeof(*stops->children));
		stops->fail = calloc(states, sizeof(*stops->fail));
		stops->shorter = calloc(states, sizeof(*stops->shorter));
		stops->whole = calloc(states, sizeof(*stops->whole));
		stops->byte = calloc(states, sizeof(*stops->byte));
	}
	if (stops != NULL && b.order && b.range && stops->text && stops->at && stops->depth &&
		stops->children && stops->fail && stops->shorter && stops->whole && stops->byte) {
		memcpy(stops->text, packed, bytes);
		for (uint32_t i = 1; i < n; i++)
			stops->at[i] = (uint16_t)(stops->at[i - 1] +
						  strlen(stops->text + stops->at[i - 1]) + 1);
		build(stops, &b);
		rc = 0;
	} else {
		text_stops_free(&stops);
	}
	free(b.order);
	free(b.range);
	*out = stops;
	return rc;
}

void text_stops_free(struct text_stops **stops)
{
	struct text_stops *s = *stops;

	if (s == NULL)
		return;
	free(s->text);
	free(s->at);
	free(s->depth);
	free(s->children);
	free(s->fail);
	free(s->shorter);
	free(s->whole);
	free(s->byte);
	free(s);
	*stops = NULL;
}

const char *text_stop(const struct text_stops *stops, int i)
{
	return stops->text + stops->at[i];
}

void text_stream_init(struct text_stream *stream, bool shown)
{
	stream->shown = shown;
	stream->stop = -1;
	stream->back = 0;
	stream->state = stream->n_held = 0;
}

/* The bytes that are held back, and those of the next token; positions count from the first byte
 * held. */
struct window {
	const struct text_stream *stream;
	const char *piece;
	size_t bytes;
	bool hidden;
};

static uint8_t flags_at(const struct window *w, size_t position)
{
	if (position < w->stream->n_held)
		return w->stream->flags[position];
	return w->hidden ? HIDDEN | (position > w->stream->n_held ? INSIDE : 0) : 0;
}

/* The longest state that ends with the byte at this position. */
static uint32_t advance(
	const struct text_stops *stops, uint32_t state, const struct window *w, size_t position)
{
	uint8_t byte = (uint8_t)w->piece[position - w->stream->n_held];

	for (;;) {
		uint32_t next = child(stops, state, byte);

		if (next && (state || !(flags_at(w, position) & INSIDE)))
			return next;
		if (state == 0)
			return 0;
		do
			state = stops->fail[state];
		while (state && flags_at(w, position - stops->depth[state]) & INSIDE);
	}
}

/* The longest stop string that ends before this position, as a state; 0: none. */
static uint32_t completed(
	const struct text_stops *stops, uint32_t state, const struct window *w, size_t end)
{
	if (state && stops->whole[state] < 0)
		state = stops->shorter[state];
	while (state && flags_at(w, end - stops->depth[state]) & INSIDE)
		state = stops->shorter[state];
	return state;
}

/* How many of the window's bytes from this position on are part of the visible text. What is held
 * was counted. */
static uint32_t visible(const struct window *w, size_t from)
{
	const struct text_stream *stream = w->stream;
	bool hidden = w->hidden && !stream->shown;
	size_t n = stream->back + (hidden ? 0 : w->bytes);

	for (size_t i = 0; i < from && i < stream->n_held; i++)
		n -= stream->shown || !(stream->flags[i] & HIDDEN);
	if (!hidden && from > stream->n_held)
		n -= from - stream->n_held;
	return (uint32_t)n;
}

/* Holds back the last `keep` bytes of the window, and no others. */
static void hold(struct text_stream *stream, const struct window *w, size_t keep)
{
	size_t old = keep > w->bytes ? keep - w->bytes : 0, from = w->bytes - (keep - old);

	memmove(stream->flags, stream->flags + stream->n_held - old, old);
	for (size_t i = old; i < keep; i++)
		stream->flags[i] =
			(uint8_t)(w->hidden ? HIDDEN | (from + i - old > 0 ? INSIDE : 0) : 0);
	stream->n_held = (uint16_t)keep;
}

bool text_feed(struct text_stream *stream, const struct text_stops *stops, const char *piece,
	size_t bytes, bool hidden)
{
	const struct window w = {stream, piece, bytes, hidden};
	uint32_t state = stream->state;

	if (stream->stop >= 0) {
		stream->back += hidden && !stream->shown ? 0 : (uint32_t)bytes;
		return true;
	}
	if (stops == NULL || bytes == 0)
		return false;
	for (size_t i = 0; i < bytes; i++) {
		size_t end = stream->n_held + i + 1;

		state = advance(stops, state, &w, end - 1);
		if (hidden && i + 1 < bytes)
			continue;
		uint32_t hit = completed(stops, state, &w, end);
		if (hit) {
			stream->back = visible(&w, end - stops->depth[hit]);
			stream->n_held = 0;
			stream->state = 0;
			stream->stop = stops->whole[hit];
			return true;
		}
	}
	stream->back = visible(&w, stream->n_held + bytes - stops->depth[state]);
	hold(stream, &w, stops->depth[state]);
	stream->state = (uint16_t)state;
	return false;
}

bool text_feed_token(struct text_stream *stream, const struct text_stops *stops,
	const struct tokenizer *tokenizer, int32_t token)
{
	struct gguf_string piece = tokenizer_piece(tokenizer, token, false);
	bool hidden = piece.bytes == 0;

	if (hidden)
		piece = tokenizer_piece(tokenizer, token, true);
	return text_feed(stream, stops, piece.data, piece.bytes, hidden);
}
