/* The parts of the expert-cache that need no process: budgets, hints, the LRU order, the reader. */
#include "services/expert-cache/budget.h"
#include "services/expert-cache/prefetch_queue.h"
#include "services/expert-cache/policy.h"
#include "services/expert-cache/reader.h"
#include "shared/base/log.h"

#include <fcntl.h>
#include <stdarg.h>
#include <setjmp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct slots_geometry geometry_of(uint32_t layers, uint32_t experts, uint32_t used)
{
	struct slots_geometry geometry = {.slot_bytes = 3 << 20,
		.n_layers = layers,
		.n_experts = experts,
		.n_experts_used = used,
		.n_total = layers * experts};
	return geometry;
}

static uint32_t slots_for(const char *text, const struct slots_geometry *geometry)
{
	uint32_t n = 0;
	struct error err = {.text = ""};
	int status = budget_slots(text, geometry, &n, &err);
	if (status != 0)
		fail_msg("%s: %s", text, err.text);
	return n;
}

static void budgets_become_slots(void **state)
{
	(void)state;
	struct slots_geometry g = geometry_of(6, 32, 1);
	assert_int_equal(slots_for("all", &g), 192);
	assert_int_equal(slots_for("100%", &g), 192);
	assert_int_equal(slots_for("30%", &g), 58); /* 57.6 */
	assert_int_equal(slots_for("50%", &g), 96);
	assert_int_equal(slots_for("min", &g), 16); /* 1 expert of 15 drafted tokens and one */
	assert_int_equal(slots_for("60M", &g), 20);
	assert_int_equal(slots_for("0.1G", &g), 34);
	assert_int_equal(slots_for("900G", &g), 192);
	g = geometry_of(6, 32, 4);
	assert_int_equal(slots_for("min", &g), 32); /* a layer has no more */
}

static void bad_budgets_are_refused_with_the_reason(void **state)
{
	(void)state;
	struct slots_geometry g = geometry_of(6, 32, 4);
	struct error err;
	uint32_t n;
	static const char *const bad[] = {
		"", "%", "-5%", "0", "101%", "12T", "12 %", "nan", "inf", "allx", "1e999"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_true(budget_slots(bad[i], &g, &n, &err) < 0);
		assert_non_null(strstr(err.text, "budget"));
	}
	assert_true(budget_slots("10%", &g, &n, &err) < 0);
	assert_non_null(strstr(err.text, "32"));
	assert_non_null(strstr(err.text, "96.0 MiB"));
	assert_int_equal(budget_check_memory(1 << 20, &err), 0);
	assert_int_equal(budget_check_memory(1ull << 60, &err), -ENOMEM);
}

static struct cache_prefetch hint_of(uint32_t layer, uint32_t expert, float score, uint64_t by)
{
	return (struct cache_prefetch){
		.layer = layer, .expert = expert, .score = score, .needed_by_ns = by};
}

static void prefetches_come_by_score_once_each_and_obsolete_ones_never(void **state)
{
	(void)state;
	struct prefetch_queue hints;
	struct error err;
	assert_int_equal(prefetch_queue_init(&hints, 2, 16, 8, &err), 0);
	struct cache_prefetch h;
	/* Scores 1..8; expert 3's time passes. */
	for (uint32_t e = 0; e < 8; e++) {
		h = hint_of(0, e, (float)(1 + e * 5 % 8), e == 3 ? 100 : 0);
		prefetch_queue_add(&hints, &h);
	}
	h = hint_of(0, 1, 20, 0); /* again, and better: 6 becomes 20 */
	prefetch_queue_add(&hints, &h);
	h = hint_of(1, 0, 1.5f, 0); /* full: takes the place of score 1 */
	prefetch_queue_add(&hints, &h);
	h = hint_of(1, 1, 0.25f, 0); /* full: worse than all */
	prefetch_queue_add(&hints, &h);
	h = hint_of(1, 2, (float)NAN, 0);
	prefetch_queue_add(&hints, &h);
	assert_int_equal(hints.n, 8);
	assert_int_equal(hints.dropped, 2);
	prefetch_queue_remove(&hints, 0, 2); /* score 3 */
	prefetch_queue_remove(&hints, 1, 5); /* is not there */
	static const float expected[] = {20, 7, 5, 4, 2, 1.5f};
	for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
		assert_true(prefetch_queue_take(&hints, 200, &h));
		if (h.score != expected[i])
			fail_msg("hint %zu has score %g, not %g", i, (double)h.score,
				(double)expected[i]);
	}
	assert_false(prefetch_queue_take(&hints, 200, &h));
	assert_int_equal(hints.dropped, 3);
	prefetch_queue_exit(&hints);
}

static bool may_all(void *arg, uint32_t slot)
{
	(void)arg;
	(void)slot;
	return true;
}

static bool may_not(void *arg, uint32_t slot)
{
	return slot != *(const uint32_t *)arg;
}

static void lru_gives_up_what_was_used_longest_ago(void **state)
{
	(void)state;
	const struct cache_policy_ops *lru = cache_policy_find("lru");
	struct cache_policy_shape shape = {
		.n_layers = 1, .n_experts = 8, .n_slots = 4, .queue_max = 4};
	struct cache_prefetch want = {.expert = 6};
	struct error err;
	void *policy;
	assert_null(cache_policy_find("none"));
	assert_int_equal(lru->create(&shape, &policy, &err), 0);
	assert_int_equal(lru->victim(policy, &want, LOAD_DEMAND, may_all, NULL), SLOT_NONE);
	for (uint32_t slot = 0; slot < 4; slot++)
		lru->on_load(policy, slot, 0, slot, LOAD_DEMAND);
	assert_int_equal(lru->victim(policy, &want, LOAD_DEMAND, may_all, NULL), 0);
	lru->on_activation(policy, &(struct cache_use){.expert = 0, .slot = 0, .tokens = 1});
	assert_int_equal(lru->victim(policy, &want, LOAD_DEMAND, may_all, NULL), 1);
	uint32_t pinned = 1;
	assert_int_equal(lru->victim(policy, &want, LOAD_DEMAND, may_not, &pinned), 2);
	lru->on_evict(policy, 2);
	assert_int_equal(lru->victim(policy, &want, LOAD_DEMAND, may_not, &pinned), 3);
	lru->on_load(policy, 2, 0, 7, LOAD_DEMAND);
	/* Not resident: nothing to order. */
	lru->on_activation(
		policy, &(struct cache_use){.expert = 5, .slot = SLOT_NONE, .tokens = 1});
	lru->on_evict(policy, 1);
	lru->on_evict(policy, 3);
	lru->on_evict(policy, 0);
	assert_int_equal(lru->victim(policy, &want, LOAD_DEMAND, may_all, NULL), 2);
	lru->on_evict(policy, 2);
	assert_int_equal(lru->victim(policy, &want, LOAD_DEMAND, may_all, NULL), SLOT_NONE);
	lru->destroy(policy);
}

enum { FILE_BYTES = 10 * SLOTS_PAGE + 100, READS = 20 };

static void make_file(char *path)
{
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	unsigned char *bytes = malloc(FILE_BYTES);
	for (size_t i = 0; i < FILE_BYTES; i++)
		bytes[i] = (unsigned char)(i * 31 + i / 4096);
	assert_int_equal(write(fd, bytes, FILE_BYTES), FILE_BYTES);
	free(bytes);
	close(fd);
}

static void expect_bytes(const struct read_request *request)
{
	for (size_t i = 0; i < request->need; i++) {
		size_t at = (size_t)request->offset + i;
		assert_int_equal(request->to[i], (unsigned char)(at * 31 + at / 4096));
	}
}

/* Pages from everywhere, the last ones past the end, all in flight at once. */
static void read_all_over(enum io_choice io, enum auto_choice direct, const char *link)
{
	char path[] = "/var/tmp/outrider-reader-XXXXXX";
	make_file(path);
	struct reader *reader;
	struct error err = {.text = ""};
	int status =
		reader_open(&(struct reader_file){path, 0}, 1, io, direct, READS, &reader, &err);
	if (status != 0 && io == IO_URING) {
		unlink(path);
		print_message("# no io_uring here: %s\n", err.text);
		skip();
	}
	assert_int_equal(status, 0);
	if (link != NULL)
		assert_string_equal(reader_link(reader), link);
	static struct read_request requests[READS];
	unsigned char *memory = aligned_alloc(SLOTS_PAGE, (size_t)READS * 4 * SLOTS_PAGE);
	for (size_t i = 0; i < READS; i++) {
		size_t offset = i % 10 * SLOTS_PAGE, bytes = (1 + i % 4) * SLOTS_PAGE;
		size_t left = FILE_BYTES - offset;
		requests[i] = (struct read_request){.offset = offset,
			.bytes = bytes,
			.need = bytes < left ? bytes : left,
			.to = memory + i * 4 * SLOTS_PAGE};
		reader_submit(reader, &requests[i]);
	}
	assert_int_equal(reader_busy(reader), READS);
	unsigned n = 0;
	while (reader_busy(reader) > 0) {
		struct read_request *finished[7];
		unsigned k = reader_wait(reader, 1000000000, finished, 7);
		for (unsigned i = 0; i < k; i++) {
			assert_int_equal(finished[i]->status, 0);
			expect_bytes(finished[i]);
		}
		n += k;
	}
	assert_int_equal(n, READS);
	/* The file is cut short: what is gone is an error, what is left is not. */
	assert_int_equal(reader_check(reader, &err), 0);
	assert_int_equal(truncate(path, 5 * SLOTS_PAGE), 0);
	assert_int_equal(reader_check(reader, &err), -ESTALE);
	struct read_request *finished;
	reader_submit(reader, &requests[9]);
	assert_int_equal(reader_wait(reader, 1000000000, &finished, 1), 1);
	assert_int_equal(finished->status, -EIO);
	reader_submit(reader, &requests[0]);
	assert_int_equal(reader_wait(reader, 1000000000, &finished, 1), 1);
	assert_int_equal(finished->status, 0);
	unlink(path);
	assert_int_equal(reader_check(reader, &err), -ENOENT);
	free(memory);
	reader_close(&reader);
}

static void io_uring_reads_pages_and_reports_a_file_cut_short(void **state)
{
	(void)state;
	read_all_over(IO_URING, CHOICE_AUTO, NULL);
}

static void io_uring_reads_through_the_page_cache(void **state)
{
	(void)state;
	read_all_over(IO_URING, CHOICE_NO, "io_uring");
}

static void threads_read_pages_and_report_a_file_cut_short(void **state)
{
	(void)state;
	read_all_over(IO_PREAD, CHOICE_AUTO, NULL);
}

static void threads_read_through_the_page_cache(void **state)
{
	(void)state;
	read_all_over(IO_PREAD, CHOICE_NO, "pread");
}

static void a_file_that_is_not_there_is_named(void **state)
{
	(void)state;
	struct reader *reader;
	struct error err;
	const struct reader_file file = {"/nowhere/x", 0};
	assert_int_equal(reader_open(&file, 1, IO_AUTO, CHOICE_AUTO, 8, &reader, &err), -ENOENT);
	assert_non_null(strstr(err.text, "/nowhere/x"));
}

/* Two files of whole pages and one after them: every request finds its file, none reaches into the next. */
static void parts_of_a_split_model_are_read_from_their_files(void **state)
{
	(void)state;
	enum { PART_BYTES = 11 * SLOTS_PAGE, PARTS = 3 };
	static const enum io_choice ios[] = {IO_PREAD, IO_AUTO};
	char paths[PARTS][40];
	struct reader_file files[PARTS];
	for (int p = 0; p < PARTS; p++) {
		strcpy(paths[p], "/var/tmp/outrider-reader-XXXXXX");
		make_file(paths[p]);
		/* The parts differ in their first byte. */
		int fd = open(paths[p], O_WRONLY);
		assert_int_equal(pwrite(fd, "ABC" + p, 1, 0), 1);
		close(fd);
		files[p] = (struct reader_file){paths[p], (uint64_t)p * PART_BYTES};
	}
	unsigned char *memory = aligned_alloc(SLOTS_PAGE, PART_BYTES);
	for (size_t i = 0; i < 2 * PARTS; i++) {
		struct reader *reader;
		struct error err = {.text = ""};
		assert_int_equal(
			reader_open(files, PARTS, ios[i / PARTS], CHOICE_AUTO, 8, &reader, &err),
			0);
		uint64_t base = i % PARTS * PART_BYTES;
		struct read_request request = {
			.offset = base, .bytes = PART_BYTES, .need = FILE_BYTES, .to = memory};
		struct read_request *finished;
		reader_submit(reader, &request);
		assert_int_equal(reader_wait(reader, 1000000000, &finished, 1), 1);
		assert_int_equal(finished->status, 0);
		assert_int_equal(memory[0], "ABC"[i % PARTS]);
		for (size_t at = 1; at < FILE_BYTES; at++)
			assert_int_equal(memory[at], (unsigned char)(at * 31 + at / 4096));
		/* Behind this part's end lies no other. */
		request.need = PART_BYTES;
		reader_submit(reader, &request);
		assert_int_equal(reader_wait(reader, 1000000000, &finished, 1), 1);
		assert_int_equal(finished->status, -EIO);
		assert_int_equal(reader_check(reader, &err), 0);
		reader_close(&reader);
	}
	free(memory);
	for (int p = 0; p < PARTS; p++)
		unlink(paths[p]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(budgets_become_slots),
		cmocka_unit_test(bad_budgets_are_refused_with_the_reason),
		cmocka_unit_test(prefetches_come_by_score_once_each_and_obsolete_ones_never),
		cmocka_unit_test(lru_gives_up_what_was_used_longest_ago),
		cmocka_unit_test(io_uring_reads_pages_and_reports_a_file_cut_short),
		cmocka_unit_test(io_uring_reads_through_the_page_cache),
		cmocka_unit_test(threads_read_pages_and_report_a_file_cut_short),
		cmocka_unit_test(threads_read_through_the_page_cache),
		cmocka_unit_test(a_file_that_is_not_there_is_named),
		cmocka_unit_test(parts_of_a_split_model_are_read_from_their_files),
	};
	log_init("test", 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
