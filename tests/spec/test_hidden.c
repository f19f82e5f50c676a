/* The log of hidden states: what a reader gets of it, at its end, after it has wrapped, when its
 * writer died in a pass, and when another process wrote rubbish into it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "shared/spec/hidden.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 8, EMBD = 5, TAPS = 2 };

static const struct hidden_shape shape = {
	.model = 77, .n_taps = TAPS, .tap = {1, 4}, .n_embd = EMBD, .n_rows = ROWS};

static void *make(struct hidden *writer)
{
	struct error err = {""};
	size_t bytes = hidden_bytes(&shape);
	void *payload =
		aligned_alloc(CACHE_LINE, (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
	assert_non_null(payload);
	memset(payload, 0, bytes);
	hidden_format(payload, &shape);
	assert_int_equal(hidden_attach(writer, payload, bytes, &err), 0);
	hidden_write_begin(writer);
	return payload;
}

static float value(uint64_t row, uint32_t tap, uint32_t i)
{
	return (float)(row * 100 + tap * 10 + i);
}

/* Writes n rows as a pass does, of which the odd ones are nobody's. */
static void write_rows(struct hidden *writer, void *payload, uint32_t n)
{
	uint64_t first = hidden_reserve(writer, n);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t row = first + i;
		for (uint32_t tap = 0; tap < TAPS; tap++) {
			float *to =
				(void *)((char *)payload + hidden_state_offset(writer, row, tap));
			for (uint32_t j = 0; j < EMBD; j++)
				to[j] = value(row, tap, j);
		}
	}
}

static void tag_rows(struct hidden *writer, uint32_t n)
{
	for (uint64_t row = writer->end; row < writer->end + n; row++) {
		struct hidden_tag tag = {0};
		if (row % 2 == 0)
			tag = (struct hidden_tag){900 + row, 3, (uint32_t)row, 0};
		hidden_set_tag(writer, row, tag);
	}
	hidden_publish(writer, n);
}

static void check_some(const struct hidden *reader, uint64_t begin, uint64_t end)
{
	float got[TAPS * EMBD];
	struct hidden_tag tag;
	for (uint64_t row = begin; row < end; row++) {
		assert_true(hidden_read_tag(reader, row, &tag));
		assert_int_equal(tag.session, row % 2 ? 0 : 900 + row);
		assert_true(hidden_read(reader, row, got));
		for (uint32_t i = 0; i < TAPS * EMBD; i++)
			assert_true(got[i] == value(row, i / EMBD, i % EMBD));
	}
}

/* These rows are there, and no others. */
static void check_rows(const struct hidden *reader, uint64_t begin, uint64_t end)
{
	uint64_t from, to;
	assert_true(hidden_range(reader, &from, &to));
	assert_int_equal(from, begin);
	assert_int_equal(to, end);
	check_some(reader, begin, end);
}

static void a_reader_gets_the_newest_rows(void **state)
{
	struct hidden writer, reader;
	struct error err;
	(void)state;
	void *payload = make(&writer);
	assert_int_equal(hidden_attach(&reader, payload, hidden_bytes(&shape), &err), 0);
	assert_true(hidden_same(&reader.shape, &shape));
	check_rows(&reader, 0, 0);
	for (uint64_t end = 3; end < 60; end += 3) {
		write_rows(&writer, payload, 3);
		/* They are not published yet, and what they overwrite is gone. */
		uint64_t begin = end > ROWS ? end - ROWS : 0;
		check_rows(&reader, begin, end - 3);
		tag_rows(&writer, 3);
		check_rows(&reader, begin, end);
	}
	free(payload);
}

static void overwritten_rows_are_told_from_others(void **state)
{
	struct hidden writer;
	struct hidden_tag tag;
	float got[TAPS * EMBD];
	(void)state;
	void *payload = make(&writer);
	for (int i = 0; i < 4; i++) {
		write_rows(&writer, payload, 3);
		tag_rows(&writer, 3);
	}
	assert_false(hidden_read(&writer, 3, got));
	assert_false(hidden_read_tag(&writer, 3, &tag));
	assert_true(hidden_read(&writer, 4, got));
	/* One pass may be as long as the log. */
	write_rows(&writer, payload, ROWS);
	assert_false(hidden_read(&writer, 11, got));
	tag_rows(&writer, ROWS);
	check_rows(&writer, 12, 20);
	free(payload);
}

static void a_successor_goes_on_where_the_writer_died(void **state)
{
	struct hidden writer, successor;
	struct error err;
	(void)state;
	void *payload = make(&writer);
	for (int i = 0; i < 5; i++) {
		write_rows(&writer, payload, 2);
		tag_rows(&writer, 2);
	}
	write_rows(&writer, payload, 4); /* it dies here */
	assert_int_equal(hidden_attach(&successor, payload, hidden_bytes(&shape), &err), 0);
	hidden_write_begin(&successor);
	check_rows(&successor, 6, 10);
	write_rows(&successor, payload, 2);
	tag_rows(&successor, 2);
	check_rows(&successor, 6, 12);
	free(payload);
}

static void impossible_headers_are_refused(void **state)
{
	static const struct {
		uint32_t n_taps, n_embd, n_rows;
	} bad[] = {{0, EMBD, ROWS}, {LIMIT_TAPS + 1, EMBD, ROWS}, {TAPS, 0, ROWS},
		{TAPS, LIMIT_EMBEDDING + 1, ROWS}, {TAPS, EMBD, 0}, {TAPS, EMBD, UINT32_MAX},
		{TAPS, EMBD, ROWS + 1}};
	struct hidden writer, reader;
	struct error err;
	(void)state;
	struct hidden_header *header = make(&writer);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		header->shape = shape;
		header->shape.n_taps = bad[i].n_taps;
		header->shape.n_embd = bad[i].n_embd;
		header->shape.n_rows = bad[i].n_rows;
		assert_int_equal(
			hidden_attach(&reader, header, hidden_bytes(&shape), &err), -EBADMSG);
		assert_non_null(strstr(err.text, "hidden states"));
	}
	header->shape = shape;
	assert_int_equal(hidden_attach(&reader, header, 10, &err), -EBADMSG);
	free(header);
}

/* Rubbish in the counters leads to no access outside of the payload, and is not taken over. */
static void impossible_counters_are_ignored(void **state)
{
	static const uint64_t bad[][2] = {{5, 4}, {0, UINT64_MAX}, {UINT64_MAX, 0},
		{UINT64_MAX, UINT64_MAX}, {0, 1000000}, {1, UINT64_MAX / 2 + 1}};
	struct hidden writer, reader;
	struct hidden_tag tag;
	float got[TAPS * EMBD];
	uint64_t begin, end;
	struct error err;
	(void)state;
	struct hidden_header *header = make(&writer);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		atomic_store(&header->begin, bad[i][0]);
		atomic_store(&header->end, bad[i][1]);
		assert_int_equal(hidden_attach(&reader, header, hidden_bytes(&shape), &err), 0);
		if (hidden_range(&reader, &begin, &end)) {
			assert_true(begin <= end && end - begin <= ROWS);
			(void)hidden_read(&reader, begin, got);
			(void)hidden_read_tag(&reader, end, &tag);
		}
		hidden_write_begin(&reader);
		assert_true(reader.begin <= reader.end && reader.end - reader.begin <= ROWS);
		write_rows(&reader, header, 3);
		tag_rows(&reader, 3);
		assert_true(hidden_range(&reader, &begin, &end));
		check_some(&reader, end - 3, end);
	}
	free(header);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_reader_gets_the_newest_rows),
		cmocka_unit_test(overwritten_rows_are_told_from_others),
		cmocka_unit_test(a_successor_goes_on_where_the_writer_died),
		cmocka_unit_test(impossible_headers_are_refused),
		cmocka_unit_test(impossible_counters_are_ignored),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
