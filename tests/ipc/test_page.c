#include "shared/base/clock.h"
#include "shared/base/patience.h"
#include "shared/ipc/page.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { WORDS = 64 };

struct page {
	struct page_lock lock;
	uint32_t pad;
	uint64_t words[WORDS]; /* all equal in a whole copy */
};

static struct page *make(void)
{
	struct page *p =
		mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_true(p != MAP_FAILED);
	return p;
}

static void write_all(struct page *p, uint64_t value)
{
	uint64_t words[WORDS];

	for (int i = 0; i < WORDS; i++)
		words[i] = value;
	page_write(&p->lock, p->words, words, sizeof words);
}

static void what_was_written_is_read(void **state)
{
	struct page *p = make();
	uint64_t got[WORDS];

	(void)state;
	assert_true(page_read(&p->lock, p->words, got, sizeof got));
	assert_int_equal(got[0], 0);
	for (uint64_t v = 1; v < 10; v++) {
		write_all(p, v);
		assert_true(page_read(&p->lock, p->words, got, sizeof got));
		assert_int_equal(got[0], v);
		assert_int_equal(got[WORDS - 1], v);
	}
	munmap(p, sizeof *p);
}

static void a_sequence_that_wraps_is_no_matter(void **state)
{
	struct page *p = make();
	uint64_t got[WORDS];

	(void)state;
	atomic_store(&p->lock.sequence, UINT32_MAX - 3);
	for (uint64_t v = 1; v < 6; v++) {
		write_all(p, v);
		assert_true(page_read(&p->lock, p->words, got, sizeof got));
		assert_int_equal(got[7], v);
	}
	munmap(p, sizeof *p);
}

static void no_reader_sees_a_torn_copy(void **state)
{
	struct page *p = make();
	uint64_t good = 0, last = 0, end_ns = clock_ns() + 500000000;
	struct patience patience;
	pid_t pid = fork();

	(void)state;
	assert_true(pid >= 0);
	if (pid == 0)
		for (uint64_t v = 1;; v++)
			write_all(p, v);
	patience_init(&patience, 30000);
	/* On a busy machine the writer may come late. */
	while (clock_ns() < end_ns || (last == 0 && patience_step_ms(&patience) > 0)) {
		uint64_t got[WORDS];

		if (!page_read(&p->lock, p->words, got, sizeof got))
			continue;
		for (int i = 1; i < WORDS; i++)
			assert_int_equal(got[i], got[0]);
		assert_true(got[0] >= last);
		last = got[0];
		good++;
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	assert_true(good > 0 && last > 0);
	munmap(p, sizeof *p);
}

static void a_writer_dead_inside_stops_readers_until_recovery(void **state)
{
	struct page *p = make();
	uint64_t got[WORDS];
	pid_t pid;

	(void)state;
	write_all(p, 7);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		page_write_begin(&p->lock);
		page_store(&p->words[0], 8);
		kill(getpid(), SIGKILL);
	}
	waitpid(pid, NULL, 0);
	assert_int_equal(atomic_load(&p->lock.sequence) & 1, 1);
	assert_false(page_read(&p->lock, p->words, got, sizeof got));
	page_recover(&p->lock);
	assert_true(page_read(&p->lock, p->words, got, sizeof got));
	assert_int_equal(got[0], 8);
	assert_int_equal(got[1], 7);
	page_recover(&p->lock); /* of a whole page: nothing */
	assert_int_equal(atomic_load(&p->lock.sequence), 4);
	munmap(p, sizeof *p);
}

static void the_next_write_heals_a_page_too(void **state)
{
	struct page *p = make();
	uint64_t got[WORDS];

	(void)state;
	page_write_begin(&p->lock);
	write_all(p, 9);
	assert_true(page_read(&p->lock, p->words, got, sizeof got));
	assert_int_equal(got[0], 9);
	assert_int_equal(
		atomic_load(&p->lock.sequence), 4); /* never a number that was seen before */
	munmap(p, sizeof *p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_written_is_read),
		cmocka_unit_test(a_sequence_that_wraps_is_no_matter),
		cmocka_unit_test(no_reader_sees_a_torn_copy),
		cmocka_unit_test(a_writer_dead_inside_stops_readers_until_recovery),
		cmocka_unit_test(the_next_write_heals_a_page_too),
	};

	return cmocka_run_group_tests_name("page", tests, NULL, NULL);
}
