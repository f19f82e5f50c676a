/* The records thread, against a producer whose clock is mad. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "services/policy-controller/records.h"
#include "shared/base/clock.h"
#include "tests/policy-controller/simulate.h"
#include "tests/until.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fixture {
	void *payload;
	struct policy_page *page;
	struct ring consumer, producer;
	struct controller controller;
	struct journal journal;
	struct records records;
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct settings settings;
	config_defaults(settings_keys, &settings);
	f->payload = page_make(&f->page, (struct ring *[]){&f->consumer, &f->producer}, 2);
	controller_init(&f->controller, f->page, &settings);
	journal_open(&f->journal, "", JOURNAL_BYTES_MIN);
	assert_int_equal(
		records_start(&f->records, &f->consumer, &f->controller, &f->journal, NULL), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	records_stop(&f->records);
	journal_close(&f->journal);
	free(f->payload);
	free(f);
	return 0;
}

/* How many records the controller has taken. */
static uint64_t taken(struct fixture *f)
{
	pthread_mutex_lock(&f->records.mutex);
	uint64_t n = f->controller.n_records;
	pthread_mutex_unlock(&f->records.mutex);
	return n;
}

static void records_are_read_whatever_time_the_last_one_names(void **state)
{
	struct fixture *f = *state;
	static const uint64_t ends[] = {0, 1, UINT64_C(1) << 63, UINT64_MAX, INT64_MAX - 1};
	static const uint64_t lasts[] = {0, 1, (UINT64_C(1) << 62) - 1};
	struct simulated sim = simulated_make(5, 0, 0.9, 0.1);
	uint64_t n = 0;
	for (size_t i = 0; i < 15; i++) {
		struct iteration_record r = simulated_step(&sim, 3);
		r.finished_ns = ends[i % 5];
		r.iteration_ns = lasts[i % 3];
		assert_true(ring_put(&f->producer, &r, sizeof(r)));
		n++;
		UNTIL(taken(f) == n);
		/* It looks again, and reckons with that time. */
		uint64_t before = atomic_load(&f->records.beat_ns);
		doorbell_ring(&f->producer.shared->bell);
		UNTIL(atomic_load(&f->records.beat_ns) != before);
	}
	assert_true(records_alive(&f->records));
}

/* As when this process is stopped while the verifier decodes. */
static void what_the_full_ring_lost_is_in_the_journal_behind_what_it_held(void **state)
{
	struct fixture *f = *state;
	struct simulated sim = simulated_make(5, 0, 0.9, 0.1);
	struct journal_loss loss[2];
	struct journal_entry newest;
	char path[] = "/tmp/outrider-records-XXXXXX";
	int fd = mkstemp(path);
	uint64_t n = 0;
	assert_true(fd >= 0);
	close(fd);
	pthread_mutex_lock(&f->records.mutex);
	journal_open(&f->journal, path, 2 << 20);
	for (struct iteration_record r = simulated_step(&sim, 3);
		ring_put(&f->producer, &r, sizeof(r)); r = simulated_step(&sim, 3))
		n++;
	for (uint32_t i = 0; i < 7; i++)
		ring_drop(&f->producer);
	pthread_mutex_unlock(&f->records.mutex);
	assert_int_equal(n, POLICY_RECORD_SLOTS);
	UNTIL(journal_losses(&f->journal, 0, loss, 2) > 0);
	assert_int_equal(journal_losses(&f->journal, 0, loss, 2), 1);
	assert_int_equal(journal_read(&f->journal, 0, &newest, 1), 1);
	assert_int_equal(taken(f), n);
	assert_true(loss[0].lost == 7 && loss[0].number == n + 1);
	assert_int_equal(loss[0].iteration, newest.iteration);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			what_the_full_ring_lost_is_in_the_journal_behind_what_it_held, setup,
			teardown),
		cmocka_unit_test_setup_teardown(
			records_are_read_whatever_time_the_last_one_names, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
