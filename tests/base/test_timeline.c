#include "shared/base/timeline.h"

#include "tests/until.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RING = 1 << 14, THREADS = 4, EACH = 2000 };

static uint64_t next_number(void)
{
	struct timeline_span none;
	uint64_t next = UINT64_MAX, lost = 0;
	assert_int_equal(timeline_read(&next, &none, 0, &lost), 0);
	return next;
}

static struct timeline_span span_of(uint64_t n)
{
	return (struct timeline_span){.start_ns = n + 1,
		.end_ns = n + 2,
		.session = ~n,
		.kind = (uint32_t)(n % TIMELINE_KINDS),
		.lane = (uint32_t)(n % 7),
		.value = {n, n * n}};
}

static void nothing_is_kept_until_somebody_asks(void **state)
{
	(void)state;
	struct timeline_span span = span_of(1);
	assert_false(timeline_on());
	assert_int_equal(timeline_start(), 0);
	timeline_add(&span);
	assert_int_equal(next_number(), 0);
	timeline_enable(clock_ns() + 60000000000ull);
	assert_true(timeline_on());
	span.start_ns = 0; /* began while it was off */
	timeline_add(&span);
	assert_int_equal(next_number(), 0);
}

static void spans_come_back_whole_and_in_order(void **state)
{
	(void)state;
	struct timeline_span out[8];
	uint64_t next = next_number(), first = next, lost = 0;
	for (uint64_t i = 0; i < 20; i++) {
		struct timeline_span span = span_of(i);
		timeline_add(&span);
	}
	uint64_t seen = 0;
	for (uint32_t n; (n = timeline_read(&next, out, 8, &lost)) > 0;)
		for (uint32_t i = 0; i < n; i++, seen++) {
			struct timeline_span expected = span_of(seen);
			assert_memory_equal(&out[i], &expected, sizeof(expected));
		}
	assert_int_equal(seen, 20);
	assert_int_equal(next, first + 20);
	assert_int_equal(lost, 0);
}

static void what_newer_spans_have_overwritten_is_counted(void **state)
{
	(void)state;
	static struct timeline_span out[RING];
	uint64_t next = next_number(), lost = 0;
	for (uint64_t i = 0; i < RING + 100; i++) {
		struct timeline_span span = span_of(i);
		timeline_add(&span);
	}
	assert_int_equal(timeline_read(&next, out, RING, &lost), RING);
	assert_int_equal(lost, 100);
	assert_int_equal(out[0].value[0], 100);
	next = UINT64_MAX; /* a reader that knows a number we never gave */
	assert_int_equal(timeline_read(&next, out, RING, &lost), 0);
}

static void *write_some(void *arg)
{
	for (uint64_t i = 0; i < EACH; i++) {
		struct timeline_span span = span_of(i + EACH * (uint64_t)(uintptr_t)arg);
		timeline_add(&span);
	}
	return NULL;
}

/* Whatever is read while others write is a span that somebody wrote, not a mixture. */
static void threads_write_while_one_reads(void **state)
{
	(void)state;
	pthread_t thread[THREADS];
	struct timeline_span out[64];
	uint64_t next = next_number(), end = next + THREADS * EACH, lost = 0, seen = 0;
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, write_some, (void *)i), 0);
	while (next < end) {
		uint32_t n = timeline_read(&next, out, 64, &lost);
		for (uint32_t i = 0; i < n; i++) {
			struct timeline_span expected = span_of(out[i].value[0]);
			assert_memory_equal(&out[i], &expected, sizeof(expected));
		}
		seen += n;
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(seen + lost, THREADS * EACH);
}

static void it_goes_off_by_itself(void **state)
{
	(void)state;
	bool was_on = false;
	/* Who is kept waiting for so long finds it off at once. */
	for (int i = 0; i < 10 && !was_on; i++) {
		timeline_enable(clock_ns() + 300000000);
		was_on = timeline_on();
	}
	assert_true(was_on);
	UNTIL(!timeline_on());
	assert_int_equal(timeline_start(), 0);
}

static void every_kind_has_a_name(void **state)
{
	(void)state;
	for (uint32_t kind = 0; kind < TIMELINE_KINDS; kind++)
		assert_non_null(timeline_info(kind)->name);
	assert_null(timeline_info(TIMELINE_KINDS));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_goes_off_by_itself),
		cmocka_unit_test(nothing_is_kept_until_somebody_asks),
		cmocka_unit_test(spans_come_back_whole_and_in_order),
		cmocka_unit_test(what_newer_spans_have_overwritten_is_counted),
		cmocka_unit_test(threads_write_while_one_reads),
		cmocka_unit_test(every_kind_has_a_name),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
