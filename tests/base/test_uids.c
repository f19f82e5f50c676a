#include "shared/base/uids.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static void what_was_put_is_found_until_it_is_removed(void **state)
{
	static struct uids uids;
	static uint64_t uid[LIMIT_SESSIONS]; /* by index; 0: none */

	(void)state;
	srand(3);
	for (int round = 0; round < 200000; round++) {
		uint32_t index = (uint32_t)rand() % LIMIT_SESSIONS;

		if (uid[index] != 0) {
			assert_int_equal(uids_find(&uids, uid[index]), (int)index);
			uids_remove(&uids, uid[index]);
			assert_int_equal(uids_find(&uids, uid[index]), -1);
			uid[index] = 0;
			continue;
		}
		/* Now numbers as clients choose them, now such as follow one another. */
		uid[index] =
			round % 2 ? (uint64_t)rand() << 32 | (uint32_t)rand() : (uint64_t)round + 1;
		uids_put(&uids, uid[index], index);
		for (uint32_t i = 0; round % 1000 == 0 && i < LIMIT_SESSIONS; i++)
			if (uid[i] != 0)
				assert_int_equal(uids_find(&uids, uid[i]), (int)i);
	}
}

static void all_places_of_sessions_may_be_taken(void **state)
{
	static struct uids uids;

	(void)state;
	assert_int_equal(uids_find(&uids, 0), -1);
	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++)
		uids_put(&uids, UINT64_MAX - i, i);
	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++)
		assert_int_equal(uids_find(&uids, UINT64_MAX - i), (int)i);
	assert_int_equal(uids_find(&uids, 1), -1);
	uids_remove(&uids, 1);
	uids_put(&uids, UINT64_MAX, 7);
	assert_int_equal(uids_find(&uids, UINT64_MAX), 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_put_is_found_until_it_is_removed),
		cmocka_unit_test(all_places_of_sessions_may_be_taken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
