/* Who goes first among requests that wait, and what is kept of sessions without a place. */
#include "services/verifier/front/inbox.h"
#include "services/verifier/front/shelf.h"
#include "shared/base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A connection; pid 0: whose process is not known. */
static struct bus_address connection(uint64_t id, uint32_t pid)
{
	return (struct bus_address){.connection = id, .uid = 1000, .pid = pid, .known = true};
}

static struct inbox_entry *add(struct inbox *inbox, struct bus_address client, uint64_t uid)
{
	Outrider__Generate generate = OUTRIDER__GENERATE__INIT;

	generate.session_uid = uid;
	struct inbox_entry *entry = inbox_add(inbox, &client, uid, &generate);
	assert_non_null(entry);
	return entry;
}

static uint64_t next(struct inbox *inbox)
{
	struct inbox_entry *entry = inbox_unread(inbox, READER_SHORT);

	if (entry == NULL)
		return 0;
	uint64_t uid = entry->uid;
	inbox_remove(inbox, entry);
	return uid;
}

static void a_client_is_a_process(void **state)
{
	struct bus_address a = connection(1, 5), b = connection(2, 5), c = connection(3, 6),
			   foreign = connection(4, 0), other = connection(5, 0), none = a;

	(void)state;
	none.known = false;
	assert_true(inbox_same_client(&a, &b));
	assert_false(inbox_same_client(&a, &c));
	assert_true(inbox_same_client(&foreign, &foreign));
	assert_false(inbox_same_client(&foreign, &other));
	assert_true(inbox_same_client(&a, &none));
	assert_false(inbox_same_client(&b, &none));
}

static void clients_take_turns(void **state)
{
	struct inbox inbox = {0};
	struct bus_address many[] = {connection(1, 5), connection(2, 5), connection(3, 5)};
	struct bus_address few = connection(4, 6), late = connection(5, 7);
	const uint64_t expected[] = {1, 100, 2, 101, 3, 4, 5};

	(void)state;
	for (uint64_t uid = 1; uid <= 9; uid++)
		add(&inbox, many[uid % 3], uid);
	add(&inbox, few, 100);
	add(&inbox, few, 101);
	for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++)
		assert_int_equal(next(&inbox), expected[i]);
	/* One that comes late waits for one text of the others, not for all. */
	add(&inbox, late, 200);
	assert_int_equal(next(&inbox), 200);
	add(&inbox, late, 201);
	add(&inbox, late, 202);
	assert_int_equal(next(&inbox), 201);
	assert_int_equal(next(&inbox), 6);
	assert_int_equal(next(&inbox), 202);
	for (uint64_t uid = 7; uid <= 9; uid++)
		assert_int_equal(next(&inbox), uid);
	assert_int_equal(next(&inbox), 0);
	assert_int_equal(inbox.n, 0);
	assert_int_equal(inbox.bytes, 0);
}

static void what_a_client_has_there_is_counted(void **state)
{
	struct inbox inbox = {0};
	struct bus_address a = connection(1, 5), b = connection(2, 6);
	struct inbox_entry *first = add(&inbox, a, 1);
	size_t bytes;

	(void)state;
	add(&inbox, b, 2);
	add(&inbox, a, 3);
	assert_int_equal(inbox_count(&inbox, &a, &bytes), 2);
	assert_int_equal(bytes, 2 * first->bytes);
	assert_true(first->bytes > 0);
	assert_int_equal(inbox.bytes, 3 * first->bytes);
	assert_ptr_equal(inbox_find(&inbox, 1), first);
	assert_null(inbox_find(&inbox, 4));
	/* One that was read, or comes back, waits for no reading. */
	inbox_read(&inbox, first);
	assert_non_null(inbox_add(&inbox, &a, 4, NULL));
	assert_int_equal(next(&inbox), 2);
	assert_int_equal(next(&inbox), 3);
	assert_int_equal(next(&inbox), 0);
	assert_int_equal(inbox_count(&inbox, &a, &bytes), 2);
	inbox_clear(&inbox);
	assert_int_equal(inbox.n, 0);
	assert_int_equal(inbox.bytes, 0);
}

enum { CONTEXT = 1 << 16 };

static uint32_t dropped;

static void count_dropped(void *arg, const struct shelved *kept)
{
	assert_false(kept->returning);
	(*(uint32_t *)arg)++;
}

static void the_shelf_is_bounded_and_keeps_what_was_asked_for(void **state)
{
	const struct sessions_header header = {
		.n_sessions = 1, .n_context = CONTEXT, .page_bytes = session_page_bytes(CONTEXT)};
	size_t payload_bytes = (sessions_bytes(1, CONTEXT) / CACHE_LINE + 1) * CACHE_LINE;
	void *payload = aligned_alloc(CACHE_LINE, payload_bytes);
	struct session_page *page = journal_page(CONTEXT);
	struct session_request request = {.max_tokens = 1};
	int32_t *prompt = calloc(CONTEXT, sizeof(*prompt));
	struct shelf shelf = {.dropped = count_dropped, .arg = &dropped};

	(void)state;
	assert_non_null(payload);
	assert_non_null(page);
	assert_non_null(prompt);
	memset(payload, 0, payload_bytes);
	struct session_page *shared = session_at(&header, payload, 0);
	/* By their number; the long ones by their bytes. */
	for (uint32_t n_prompt = 1; n_prompt <= CONTEXT; n_prompt += CONTEXT - 1) {
		for (uint64_t uid = 1; uid <= LIMIT_SHELF_SESSIONS + 40; uid++) {
			journal_admit(
				&header, page, shared, uid, uid, &request, prompt, n_prompt, NULL);
			struct shelved *kept = shelf_put(&shelf, &header, page, shared);
			assert_non_null(kept);
			if (uid == 1)
				kept->returning = true;
			journal_free(page, shared);
			assert_in_range(shelf.n, 1, LIMIT_SHELF_SESSIONS);
			assert_in_range(shelf.bytes, 1, LIMIT_SHELF_BYTES);
			assert_ptr_equal(shelf_find(&shelf, uid), kept);
		}
		assert_non_null(shelf_find(&shelf, 1));
		assert_null(shelf_find(&shelf, 2));
		assert_non_null(shelf_find(&shelf, LIMIT_SHELF_SESSIONS));
		assert_true(n_prompt == 1 ? shelf.n == LIMIT_SHELF_SESSIONS
					  : shelf.bytes > LIMIT_SHELF_BYTES / 2);
		uint64_t now_ns = clock_ns();
		/* Soon after the machine has started, too. */
		shelf_expire(&shelf, now_ns, UINT64_MAX, UINT64_MAX);
		shelf_expire(&shelf, now_ns, now_ns + 1000000000, 0);
		assert_true(shelf.n > 1);
		shelf_expire(&shelf, now_ns + 1000000001, 1000000000, 0);
		assert_int_equal(shelf.n, 1);
		assert_int_equal(dropped, LIMIT_SHELF_SESSIONS + 39);
		dropped = 0;
		assert_non_null(shelf_find(&shelf, 1));
		/* Its client is gone again: it has the whole time from then on. */
		shelf_waits_again(shelf_find(&shelf, 1));
		shelf_expire(&shelf, clock_ns(), 1000000000, 0);
		assert_int_equal(shelf.n, 1);
		shelf_clear(&shelf);
		assert_int_equal(shelf.bytes, 0);
	}
	/* One that was told to sleep has a time of its own. */
	journal_admit(&header, page, shared, 7, 7, &request, prompt, 1, NULL);
	journal_sleep(page, shared, SLEEP_TOLD);
	assert_non_null(shelf_put(&shelf, &header, page, shared));
	uint64_t later_ns = clock_ns() + 5000000000;
	shelf_expire(&shelf, later_ns, 1000000000, 10000000000);
	assert_int_equal(shelf.n, 1);
	shelf_expire(&shelf, later_ns, 1000000000, 2000000000);
	assert_int_equal(shelf.n, 0);
	free(prompt);
	free(page);
	free(payload);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_client_is_a_process),
		cmocka_unit_test(clients_take_turns),
		cmocka_unit_test(what_a_client_has_there_is_counted),
		cmocka_unit_test(the_shelf_is_bounded_and_keeps_what_was_asked_for),
	};

	return cmocka_run_group_tests_name("inbox", tests, NULL, NULL);
}
