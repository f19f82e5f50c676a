/* The digest of a model's files: what is touched is compared, what changed is found, whatever the times say. */
#include "services/expert-cache/digest.h"

#include "shared/model/gguf/gguf_watch.h"
#include "tests/until.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL "models/outrider-demo-moe-q4_0.gguf"

struct opened {
	char path[64];
	struct gguf *gguf;
	struct file_digest *table;
	struct digest digest;
};

static void need_model(void)
{
	if (access(MODEL, R_OK) != 0)
		skip();
}

static bool is_busy(void *arg)
{
	return *(bool *)arg;
}

static void begin(struct opened *o, bool *busy)
{
	struct error err = {.text = ""};
	assert_int_equal(
		digest_start(&o->digest, o->gguf, o->table, busy ? is_busy : NULL, busy, &err), 0);
}

static void open_copy(struct opened *o)
{
	char command[256];
	struct error err = {.text = ""};
	memset(o, 0, sizeof(*o));
	snprintf(o->path, sizeof(o->path), "/var/tmp/outrider-digest-%d", (int)getpid());
	snprintf(command, sizeof(command), "cp " MODEL " %s", o->path);
	assert_int_equal(system(command), 0);
	assert_int_equal(gguf_open(o->path, &o->gguf, &err), 0);
	(void)gguf_fingerprint(o->gguf);
	o->table = calloc(1, file_digest_bytes(o->gguf));
	file_digest_format(o->table, o->gguf);
}

static void close_copy(struct opened *o)
{
	digest_stop(&o->digest);
	free(o->table);
	gguf_close(&o->gguf);
	unlink(o->path);
}

static bool complete(const struct opened *o)
{
	return atomic_load(&o->table->n_done) == o->table->n_blocks;
}

static bool compared(const struct opened *o)
{
	return gguf_watch(o->gguf, NULL) == 0 && digest_proves(&o->digest);
}

static bool differs(const struct opened *o)
{
	return atomic_load(&o->table->differs) != 0;
}

/* One byte, with the times put back as far as that is possible. */
static void flip(const struct opened *o, off_t at)
{
	struct stat status;
	unsigned char byte;
	int fd = open(o->path, O_RDWR);
	assert_int_equal(fstat(fd, &status), 0);
	assert_int_equal(pread(fd, &byte, 1, at), 1);
	byte ^= 1;
	assert_int_equal(pwrite(fd, &byte, 1, at), 1);
	const struct timespec times[2] = {status.st_atim, status.st_mtim};
	assert_int_equal(futimens(fd, times), 0);
	close(fd);
}

static void what_is_touched_is_compared_and_the_same(void **state)
{
	struct opened o;
	(void)state;
	need_model();
	open_copy(&o);
	begin(&o, NULL);
	UNTIL(complete(&o));
	uint64_t origin = atomic_load(&o.table->origin), before = gguf_state(o.gguf);
	usleep(20000); /* file systems' clocks tick */
	assert_int_equal(chmod(o.path, 0600), 0);
	UNTIL(compared(&o));
	assert_true(gguf_state(o.gguf) != before && atomic_load(&o.digest.compared) == 1);
	assert_true(atomic_load(&o.table->origin) == origin);
	/* The same bytes, written again. */
	flip(&o, 0);
	flip(&o, 0);
	UNTIL(compared(&o));
	assert_int_equal(digest_check(&o.digest, NULL), 0);
	close_copy(&o);
}

/* Wherever it is: in the header, between weights, at the end. */
static void one_byte_that_changes_is_found_and_named(void **state)
{
	(void)state;
	need_model();
	for (int i = 0; i < 5; i++) {
		struct opened o;
		struct error err = {.text = ""};
		open_copy(&o);
		begin(&o, NULL);
		UNTIL(complete(&o));
		off_t last = (off_t)gguf_bytes(o.gguf) - 1;
		usleep(20000);
		flip(&o, last / 4 * i + (i == 4 ? last % 4 : 0));
		UNTIL(differs(&o));
		assert_int_equal(digest_check(&o.digest, &err), -ESTALE);
		assert_non_null(strstr(err.text, o.path));
		assert_non_null(strstr(err.text, "was written to"));
		assert_false(digest_proves(&o.digest));
		close_copy(&o);
	}
}

/* A successor compares what its predecessor noted, whoever saw the change. */
static void a_change_while_nobody_looked_is_found(void **state)
{
	struct opened o;
	(void)state;
	need_model();
	open_copy(&o);
	begin(&o, NULL);
	UNTIL(complete(&o));
	digest_stop(&o.digest);
	usleep(20000);
	flip(&o, 5000000);
	begin(&o, NULL);
	UNTIL(differs(&o));
	close_copy(&o);
}

/* A write through a mapping changes the file's times when the kernel pleases: here they are made to look the same. */
static void what_no_time_says_is_found_all_the_same(void **state)
{
	struct opened o;
	uint64_t now;
	size_t part;
	(void)state;
	need_model();
	open_copy(&o);
	begin(&o, NULL);
	UNTIL(complete(&o));
	digest_stop(&o.digest);
	usleep(20000);
	flip(&o, 10);
	assert_int_equal(gguf_state_now(o.gguf, &now, &part), GGUF_WHOLE);
	atomic_store(&o.table->state, now);
	begin(&o, NULL);
	UNTIL(differs(&o));
	close_copy(&o);
}

/* What was not read before it was touched cannot be compared, and nobody may say that it was. */
static void a_digest_that_was_not_complete_begins_anew(void **state)
{
	struct opened o;
	(void)state;
	need_model();
	open_copy(&o);
	uint64_t origin = atomic_load(&o.table->origin);
	usleep(20000);
	assert_int_equal(chmod(o.path, 0600), 0);
	begin(&o, NULL);
	UNTIL(complete(&o));
	assert_true(atomic_load(&o.table->origin) != origin);
	assert_int_equal(atomic_load(&o.digest.n_compared), 0);
	close_copy(&o);
}

static void beside_a_busy_link_it_goes_on(void **state)
{
	struct opened o;
	bool busy = true;
	(void)state;
	need_model();
	open_copy(&o);
	begin(&o, &busy);
	UNTIL(complete(&o));
	close_copy(&o);
}

/* All parts of a split model, each block in one of them. */
static void blocks_lie_in_one_part(void **state)
{
	struct error err = {.text = ""};
	struct gguf *gguf;
	(void)state;
	need_model();
	assert_int_equal(gguf_open(MODEL, &gguf, &err), 0);
	uint64_t n = file_digest_blocks(gguf), bytes = 0;
	for (uint64_t i = 0; i < n; i++) {
		struct digest_block block = file_digest_block(gguf, i);
		assert_true(block.bytes > 0 && block.bytes <= DIGEST_BLOCK_BYTES);
		assert_int_equal(block.part, 0);
		assert_int_equal(block.offset, bytes);
		bytes += block.bytes;
	}
	assert_int_equal(bytes, gguf_bytes(gguf));
	gguf_close(&gguf);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_touched_is_compared_and_the_same),
		cmocka_unit_test(one_byte_that_changes_is_found_and_named),
		cmocka_unit_test(a_change_while_nobody_looked_is_found),
		cmocka_unit_test(what_no_time_says_is_found_all_the_same),
		cmocka_unit_test(a_digest_that_was_not_complete_begins_anew),
		cmocka_unit_test(beside_a_busy_link_it_goes_on),
		cmocka_unit_test(blocks_lie_in_one_part),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
