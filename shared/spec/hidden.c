#include "shared/spec/hidden.h"

#include "shared/base/round.h"

#include <errno.h>
#include <string.h>

static size_t tags_offset(void)
{
	return round_up(sizeof(struct hidden_header), CACHE_LINE);
}

static size_t states_offset(const struct hidden_shape *shape)
{
	return tags_offset() + round_up(shape->n_rows * sizeof(struct hidden_tag), CACHE_LINE);
}

size_t hidden_row_bytes(const struct hidden_shape *shape)
{
	return sizeof(struct hidden_tag) + (size_t)shape->n_taps * shape->n_embd * sizeof(float);
}

size_t hidden_bytes(const struct hidden_shape *shape)
{
	return states_offset(shape) +
	       (size_t)shape->n_taps * shape->n_rows * shape->n_embd * sizeof(float);
}

void hidden_format(void *payload, const struct hidden_shape *shape)
{
	struct hidden_header *header = payload;

	header->shape = *shape;
}

static void *at(void *payload, size_t offset)
{
	return (char *)payload + offset;
}

int hidden_attach(struct hidden *hidden, void *payload, size_t bytes, struct error *err)
{
	memset(hidden, 0, sizeof(*hidden));
	if (bytes < tags_offset())
		return error_set(err, EBADMSG,
			"hidden states: %zu bytes are too few for their header", bytes);
	struct hidden_shape *shape = &hidden->shape;
	memcpy(shape, &((struct hidden_header *)payload)->shape, sizeof(*shape));
	if (shape->n_taps == 0 || shape->n_taps > LIMIT_TAPS || shape->n_embd == 0 ||
		shape->n_embd > LIMIT_EMBEDDING || shape->n_rows == 0 ||
		shape->n_rows > HIDDEN_ROWS_MAX)
		return error_set(err, EBADMSG,
			"hidden states: %u rows of %u states of %u values are out of range",
			shape->n_rows, shape->n_taps, shape->n_embd);
	if (hidden_bytes(shape) > bytes)
		return error_set(err, EBADMSG,
			"hidden states: %u rows of %u states of %u values do not fit %zu bytes",
			shape->n_rows, shape->n_taps, shape->n_embd, bytes);
	hidden->header = payload;
	hidden->tags = at(payload, tags_offset());
	hidden->states = at(payload, states_offset(shape));
	return 0;
}

bool hidden_same(const struct hidden_shape *a, const struct hidden_shape *b)
{
	return a->model == b->model && a->n_taps == b->n_taps && a->n_embd == b->n_embd &&
	       memcmp(a->tap, b->tap, a->n_taps * sizeof(a->tap[0])) == 0;
}

void hidden_write_begin(struct hidden *hidden)
{
	/* What another process may have left there: everything is given up. */
	if (!hidden_range(hidden, &hidden->begin, &hidden->end)) {
		hidden->begin = hidden->end = 0;
		atomic_store_explicit(&hidden->header->begin, 0, memory_order_relaxed);
		atomic_store_explicit(&hidden->header->end, 0, memory_order_relaxed);
	}
}

uint64_t hidden_reserve(struct hidden *hidden, uint32_t n)
{
	uint64_t end = hidden->end + n, rows = hidden->shape.n_rows;

	if (end > rows && end - rows > hidden->begin)
		hidden->begin = end - rows;
	atomic_store_explicit(&hidden->header->begin, hidden->begin, memory_order_relaxed);
	/* Pairs with the fence in `still`: a reader that copied something of the new rows sees that
	 * `begin` has passed the old ones. */
	atomic_thread_fence(memory_order_release);
	return hidden->end;
}

static size_t place(const struct hidden *hidden, uint64_t row, uint32_t tap)
{
	const struct hidden_shape *shape = &hidden->shape;

	return ((size_t)tap * shape->n_rows + row % shape->n_rows) * shape->n_embd;
}

size_t hidden_state_offset(const struct hidden *hidden, uint64_t row, uint32_t tap)
{
	return states_offset(&hidden->shape) + place(hidden, row, tap) * sizeof(float);
}

uint32_t hidden_to_end(const struct hidden *hidden, uint64_t row)
{
	return hidden->shape.n_rows - (uint32_t)(row % hidden->shape.n_rows);
}

void hidden_set_tag(struct hidden *hidden, uint64_t row, struct hidden_tag tag)
{
	hidden->tags[row % hidden->shape.n_rows] = tag;
}

void hidden_publish(struct hidden *hidden, uint32_t n)
{
	hidden->end += n;
	/* Pairs with the acquire in hidden_range. */
	atomic_store_explicit(&hidden->header->end, hidden->end, memory_order_release);
}

bool hidden_range(const struct hidden *hidden, uint64_t *begin, uint64_t *end)
{
	const uint64_t rows = hidden->shape.n_rows;

	/* In this order: neither ever falls, so an older `begin` is below a newer `end`. */
	*begin = atomic_load_explicit(&hidden->header->begin, memory_order_acquire);
	/* Pairs with the release in hidden_publish: rows and tags are there. */
	*end = atomic_load_explicit(&hidden->header->end, memory_order_acquire);
	if (*begin > *end || *end > UINT64_MAX / 2)
		return false;
	if (*end - *begin > rows)
		*begin = *end - rows;
	return true;
}

/* Whether the row that was copied before this call had not been overwritten. */
static bool still(const struct hidden *hidden, uint64_t row)
{
	/* Pairs with the fence in hidden_reserve. */
	atomic_thread_fence(memory_order_acquire);
	return atomic_load_explicit(&hidden->header->begin, memory_order_relaxed) <= row;
}

bool hidden_read_tag(const struct hidden *hidden, uint64_t row, struct hidden_tag *out)
{
	memcpy(out, &hidden->tags[row % hidden->shape.n_rows], sizeof(*out));
	return still(hidden, row);
}

bool hidden_read(const struct hidden *hidden, uint64_t row, float *out)
{
	uint32_t n = hidden->shape.n_embd;

	for (uint32_t tap = 0; tap < hidden->shape.n_taps; tap++)
		memcpy(out + (size_t)tap * n, hidden->states + place(hidden, row, tap),
			n * sizeof(*out));
	return still(hidden, row);
}
