/*
 * Pages on disk: the format of a file, the index with its budget, and the thread that reads and writes, in a real directory.
 */
#include "services/verifier/prefixes/prefix_disk.h"
#include "services/verifier/prefixes/prefix_index.h"
#include "shared/base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { CONTENT = 3000, FILE_BYTES = PREFIX_HEADER_BYTES + CONTENT };

static const struct prefix_shape shape = {1, 2, 3, 0, 4, 2, 16, 16, 0, 0};

static struct prefix_header header_of(uint64_t before, uint64_t domain, int32_t first)
{
	struct prefix_header h = {
		.shape = shape, .before = before, .domain = domain, .content_bytes = CONTENT};

	for (int i = 0; i < PREFIX_TOKENS; i++) {
		h.tokens[i] = first + i;
		h.order[i] = (uint8_t)(PREFIX_TOKENS - 1 - i);
	}
	return h;
}

/* ---- The format. ---- */

static void a_header_is_read_as_it_was_written(void **state)
{
	(void)state;
	unsigned char bytes[PREFIX_HEADER_BYTES];
	struct prefix_header h = header_of(7, 5, -3), again;
	struct error err;

	h.id = 9;
	h.content_sum = 12345;
	prefix_header_write(&h, bytes);
	assert_int_equal(prefix_header_read(bytes, FILE_BYTES, &again, &err), 0);
	assert_memory_equal(&h, &again, sizeof(h));
	/* Little-endian, whatever the machine is. */
	assert_memory_equal(bytes, "OUTRDKVP\2\0\0\0", 12);
	assert_memory_equal(bytes + 64, "\x09\0\0\0\0\0\0\0", 8);
}

static void each_damage_to_a_header_is_seen(void **state)
{
	(void)state;
	unsigned char bytes[PREFIX_HEADER_BYTES];
	struct prefix_header h = header_of(7, 5, 1), again;
	struct error err;

	h.id = 9;
	prefix_header_write(&h, bytes);
	for (size_t i = 0; i < sizeof(bytes); i++) {
		bytes[i] ^= 0x10;
		assert_int_equal(prefix_header_read(bytes, FILE_BYTES, &again, &err), -EBADMSG);
		bytes[i] ^= 0x10;
	}
	for (uint64_t n = 0; n < FILE_BYTES; n += 97)
		assert_int_equal(prefix_header_read(bytes, n, &again, &err), -EBADMSG);
	assert_int_equal(prefix_header_read(bytes, FILE_BYTES + 1, &again, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "truncated, or too long"));
	h.order[3] = h.order[4];
	prefix_header_write(&h, bytes);
	assert_int_equal(prefix_header_read(bytes, FILE_BYTES, &again, &err), -EBADMSG);
	assert_string_equal(err.text, "its header contradicts itself");
}

static void another_shape_is_refused(void **state)
{
	(void)state;
	struct error err;
	const char *const why[] = {"another model", "replaced or written to", "arithmetic 4, not 3",
		"another shape", "another shape", "another shape", "another shape", "another shape",
		"recurrent states or windows have another shape"};

	assert_int_equal(prefix_shape_check(&shape, &shape, &err), 0);
	for (int i = 0; i < 9; i++) {
		struct prefix_shape other = shape;
		uint64_t *words[] = {&other.model, &other.stamps, &other.arithmetic};
		uint32_t *fields[] = {&other.kv_type, &other.n_layers, &other.n_kv_heads,
			&other.k_dim, &other.v_dim, &other.n_states};

		if (i < 3)
			++*words[i];
		else
			++*fields[i - 3];
		assert_int_equal(prefix_shape_check(&other, &shape, &err), -ESTALE);
		assert_non_null(strstr(err.text, why[i]));
	}
}

/* ---- The index. ---- */

static uint32_t add(struct prefix_index *x, uint64_t id, uint64_t before, int32_t first)
{
	struct prefix_header h = header_of(before, 5, first);

	h.id = id;
	return prefix_index_add(x, &h, true);
}

static bool holds(const struct prefix_index *x, uint64_t id)
{
	return prefix_index_id(x, id) != PREFIX_NONE;
}

static void give_way(struct prefix_index *x)
{
	prefix_index_remove(x, prefix_index_least(x), true);
}

static void what_was_found_least_goes_first_from_the_end(void **state)
{
	(void)state;
	struct prefix_index x;

	assert_int_equal(prefix_index_init(&x, 5 * FILE_BYTES + 1, FILE_BYTES), 0);
	/* A chain of three, one alone, and one behind the first. */
	assert_true(add(&x, 1, 0, 10) != PREFIX_NONE && add(&x, 2, 1, 20) != PREFIX_NONE &&
		    add(&x, 3, 2, 30) != PREFIX_NONE);
	assert_true(add(&x, 4, 0, 40) != PREFIX_NONE && add(&x, 5, 1, 50) != PREFIX_NONE);
	/* No room; a page that is there; one without the page before it. */
	assert_int_equal(add(&x, 6, 0, 60), PREFIX_NONE);
	assert_int_equal(
		prefix_index_find(&x, 1, 5, header_of(1, 5, 20).tokens), prefix_index_id(&x, 2));
	assert_int_equal(prefix_index_find(&x, 1, 6, header_of(1, 6, 20).tokens), PREFIX_NONE);
	prefix_index_used(&x, prefix_index_id(&x, 3));
	give_way(&x);
	assert_false(holds(&x, 4));
	assert_int_equal(add(&x, 6, 99, 60), PREFIX_NONE);
	assert_int_equal(add(&x, 6, 1, 20), PREFIX_NONE);
	give_way(&x);
	assert_false(holds(&x, 5));
	for (uint64_t id = 3; id >= 1; id--) {
		assert_int_equal(prefix_index_least(&x), prefix_index_id(&x, id));
		give_way(&x);
	}
	assert_int_equal(x.bytes, 0);
	assert_int_equal(prefix_index_least(&x), PREFIX_NONE);
	/* It is younger than everything that went. */
	assert_true(add(&x, 7, 0, 70) != PREFIX_NONE);
	assert_true(x.entries[prefix_index_id(&x, 7)].worth > 2);
	prefix_index_exit(&x);
}

static void any_order_of_changes_keeps_the_index_whole(void **state)
{
	(void)state;
	enum { N = 40 };
	struct prefix_index x;
	uint64_t ids[400] = {0};
	unsigned random = 1;
	uint32_t n = 0;

	assert_int_equal(prefix_index_init(&x, N * FILE_BYTES, FILE_BYTES), 0);
	for (uint32_t turn = 1; turn < 4000; turn++) {
		uint64_t some = n > 0 ? ids[(uint32_t)rand_r(&random) % n] : 0;

		if (!prefix_index_fits(&x, FILE_BYTES))
			give_way(&x);
		if (!holds(&x, some))
			some = 0;
		if (some != 0 && rand_r(&random) % 4 == 0) {
			prefix_index_used(&x, prefix_index_id(&x, some));
		} else if (some != 0 && rand_r(&random) % 16 == 0) {
			while (holds(&x, some))
				prefix_index_remove(&x,
					prefix_index_behind(&x, prefix_index_id(&x, some)), false);
		} else if (add(&x, turn, some, (int32_t)turn) != PREFIX_NONE) {
			ids[n < 400 ? n++ : (uint32_t)rand_r(&random) % 400] = turn;
		}
		uint64_t bytes = 0;
		for (uint32_t e = 0; e < x.n; e++) {
			const struct prefix_entry *at = &x.entries[e];

			bytes += at->id != 0 ? FILE_BYTES : 0;
			assert_true(at->id == 0 || (prefix_index_id(&x, at->id) == e &&
							   prefix_index_find(&x, at->before,
								   at->domain, at->tokens) == e));
			/* None is worth less than one behind it. */
			assert_true(at->id == 0 || at->parent == PREFIX_NONE ||
				    (x.entries[at->parent].id == at->before &&
					    x.entries[at->parent].worth >= at->worth));
		}
		assert_int_equal(bytes, x.bytes);
	}
	prefix_index_exit(&x);
}

/* ---- The disk. ---- */

struct rig {
	char dir[64];
	struct prefix_disk *disk;
	uint64_t budget;
	struct prefix_shape shape;
	struct prefix_disk_counts counts;
};

static void wake(void *arg)
{
	(void)arg;
}

static void pause_a_little(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void open_rig(struct rig *rig)
{
	struct prefix_disk_options options = {.dir = rig->dir,
		.budget = rig->budget,
		.content_bytes = CONTENT,
		.shape = rig->shape,
		.wake = wake,
		.counts = &rig->counts};
	struct error err;

	assert_int_equal(prefix_disk_open(&options, &rig->disk, &err), 0);
	/* Until the directory was looked at. */
	while (prefix_disk_writes(rig->disk) == NULL)
		pause_a_little();
}

static int set_up(void **state)
{
	struct rig *rig = calloc(1, sizeof(*rig));

	strcpy(rig->dir, "/tmp/outrider-prefixes-XXXXXX");
	assert_non_null(mkdtemp(rig->dir));
	rig->budget = 100 * FILE_BYTES;
	rig->shape = shape;
	open_rig(rig);
	*state = rig;
	return 0;
}

static void again(struct rig *rig)
{
	prefix_disk_close(&rig->disk);
	open_rig(rig);
}

static int tear_down(void **state)
{
	struct rig *rig = *state;
	char command[128];

	prefix_disk_close(&rig->disk);
	snprintf(command, sizeof(command), "rm -rf %s", rig->dir);
	assert_int_equal(system(command), 0);
	free(rig);
	return 0;
}

static unsigned char byte_of(int32_t first, size_t i)
{
	return (unsigned char)((size_t)first * 31 + i * 7);
}

static uint64_t write_page(struct rig *rig, uint64_t before, uint64_t domain, int32_t first)
{
	struct prefix_header h = header_of(before, domain, first);
	struct prefix_buffer *buffer;

	while ((buffer = prefix_disk_writes(rig->disk)) == NULL)
		pause_a_little();
	unsigned char *content = prefix_buffer_content(buffer);
	for (size_t i = 0; i < CONTENT; i++)
		content[i] = byte_of(first, i);
	uint64_t id = prefix_disk_write(rig->disk, buffer, &h, NULL);
	while (prefix_disk_busy(rig->disk))
		pause_a_little();
	return id;
}

static uint64_t find_page(struct rig *rig, uint64_t before, uint64_t domain, int32_t first)
{
	return prefix_disk_find(rig->disk, before, domain, header_of(before, domain, first).tokens);
}

/* Reads a page; its content must be right. */
static int read_page(struct rig *rig, uint64_t id, int32_t first)
{
	const struct prefix_header *header;
	struct prefix_buffer *buffer = prefix_disk_read(rig->disk, id, NULL);
	int rc;

	assert_non_null(buffer);
	while ((rc = prefix_disk_arrived(buffer, &header)) == -EINPROGRESS)
		pause_a_little();
	const unsigned char *content = prefix_buffer_content(buffer);
	for (size_t i = 0; rc == 0 && i < CONTENT; i++)
		assert_int_equal(content[i], byte_of(first, i));
	assert_true(rc != 0 || header->tokens[0] == first);
	prefix_disk_give(rig->disk, &buffer);
	return rc;
}

static void path_of(const struct rig *rig, uint64_t id, char path[128])
{
	snprintf(path, 128, "%s/%016llx.kv", rig->dir, (unsigned long long)id);
}

static uint32_t n_files(const struct rig *rig)
{
	DIR *dir = opendir(rig->dir);
	uint32_t n = 0;

	for (struct dirent *e; (e = readdir(dir)) != NULL;)
		n += strstr(e->d_name, ".kv") != NULL || strstr(e->d_name, ".part") != NULL;
	closedir(dir);
	return n;
}

static void pages_are_found_again_by_their_tokens_and_domain(void **state)
{
	struct rig *rig = *state;
	uint64_t a = write_page(rig, 0, 5, 100), b = write_page(rig, a, 5, 200);

	for (int turn = 0; turn < 2; turn++) {
		assert_true(a != 0 && b != 0);
		assert_int_equal(find_page(rig, 0, 5, 100), a);
		assert_int_equal(find_page(rig, a, 5, 200), b);
		assert_int_equal(find_page(rig, 0, 5, 200), 0);
		/* Another key's. */
		assert_int_equal(find_page(rig, 0, 6, 100), 0);
		assert_int_equal(read_page(rig, a, 100), 0);
		assert_int_equal(read_page(rig, b, 200), 0);
		again(rig);
	}
}

static void damaged_files_are_not_used(void **state)
{
	struct rig *rig = *state;
	char path[128];
	enum { KINDS = 5 };

	for (int kind = 0; kind < KINDS; kind++) {
		uint64_t a = write_page(rig, 0, 5, 100), b = write_page(rig, a, 5, 200);
		path_of(rig, a, path);
		int fd = open(path, O_RDWR);
		assert_true(a != 0 && b != 0 && fd >= 0);
		if (kind == 0)
			assert_int_equal(ftruncate(fd, FILE_BYTES - 1), 0);
		else if (kind == 1)
			assert_int_equal(pwrite(fd, "x", 1, 90), 1);
		else if (kind == 2)
			assert_int_equal(pwrite(fd, "x", 1, FILE_BYTES - 9), 1);
		else if (kind == 3)
			assert_int_equal(unlink(path), 0);
		else
			assert_true(unlink(path) == 0 && mkdir(path, 0700) == 0);
		close(fd);
		assert_int_not_equal(read_page(rig, a, 100), 0);
		/* Nor what is behind it. */
		assert_int_equal(find_page(rig, 0, 5, 100), 0);
		assert_int_equal(find_page(rig, a, 5, 200), 0);
		assert_false(prefix_disk_has(rig->disk, b));
		rmdir(path);
		assert_int_equal(n_files(rig), 0);
	}
	assert_int_equal(rig->counts.failed, KINDS);
	assert_int_equal(rig->counts.bytes, 0);
}

static void files_of_another_model_are_refused_and_give_way_first(void **state)
{
	struct rig *rig = *state;
	uint64_t a = write_page(rig, 0, 5, 100), other;

	rig->shape.model++;
	rig->budget = 2 * FILE_BYTES;
	again(rig);
	assert_int_equal(find_page(rig, 0, 5, 100), 0);
	assert_int_equal(rig->counts.bytes, FILE_BYTES);
	other = write_page(rig, 0, 5, 300);
	assert_int_equal(n_files(rig), 2);
	assert_true(write_page(rig, other, 5, 400) != 0);
	again(rig);
	assert_int_equal(n_files(rig), 2);
	assert_int_equal(find_page(rig, 0, 5, 300), other);
	assert_false(prefix_disk_has(rig->disk, a));
	assert_int_equal(rig->counts.bytes, 2 * FILE_BYTES);
}

static void the_budget_is_kept(void **state)
{
	struct rig *rig = *state;

	rig->budget = 3 * FILE_BYTES;
	again(rig);
	for (int32_t i = 0; i < 10; i++) {
		assert_true(write_page(rig, 0, 5, 100 * i) != 0);
		assert_true(n_files(rig) <= 4); /* the one that gives way may be there still */
	}
	again(rig);
	assert_int_equal(n_files(rig), 3);
	assert_true(find_page(rig, 0, 5, 900) != 0);
	assert_int_equal(find_page(rig, 0, 5, 0), 0);
	/* A smaller budget holds from the start. */
	rig->budget = FILE_BYTES;
	again(rig);
	assert_int_equal(n_files(rig), 1);
}

static void a_write_that_fails_loses_the_page_alone(void **state)
{
	struct rig *rig = *state;
	struct rlimit before, little = {.rlim_cur = 1000, .rlim_max = RLIM_INFINITY};
	uint64_t a = write_page(rig, 0, 5, 100);

	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	little.rlim_max = before.rlim_max;
	/* A write of 1000 bytes, then an error. */
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
	(void)write_page(rig, a, 5, 200);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	assert_int_equal(rig->counts.failed, 1);
	assert_int_equal(n_files(rig), 1);
	assert_int_equal(find_page(rig, a, 5, 200), 0);
	/* For a while it is not tried again. */
	assert_null(prefix_disk_writes(rig->disk));
	assert_int_equal(read_page(rig, a, 100), 0);
	/* Counts belong to the caller: those of the next disk go on. */
	again(rig);
	assert_int_equal(rig->counts.failed, 1);
	assert_int_equal(rig->counts.files, 1);
	assert_true(write_page(rig, a, 5, 200) != 0);
}

static void leftovers_and_strangers_are_told_apart(void **state)
{
	struct rig *rig = *state;
	char path[128];
	const char *const names[] = {
		"0123456789abcdef.part", "0123456789abcdef.kv", "notes.txt", "0123456789ABCDEF.kv"};

	prefix_disk_close(&rig->disk);
	for (int i = 0; i < 4; i++) {
		snprintf(path, sizeof(path), "%s/%s", rig->dir, names[i]);
		close(open(path, O_CREAT | O_WRONLY, 0600));
	}
	open_rig(rig);
	for (int i = 0; i < 4; i++) {
		snprintf(path, sizeof(path), "%s/%s", rig->dir, names[i]);
		assert_int_equal(access(path, F_OK), i < 2 ? -1 : 0);
	}
}

static void one_process_at_a_time_uses_a_directory(void **state)
{
	struct rig *rig = *state;
	struct prefix_disk_counts counts = {0};
	struct prefix_disk_options options = {.dir = rig->dir,
		.budget = rig->budget,
		.content_bytes = CONTENT,
		.shape = rig->shape,
		.wake = wake,
		.counts = &counts};
	struct prefix_disk *second;
	struct error err;
	uint64_t a = write_page(rig, 0, 5, 100), end_ns = clock_ns() + 50000000;

	assert_int_equal(prefix_disk_open(&options, &second, &err), 0);
	while (clock_ns() < end_ns)
		assert_null(prefix_disk_writes(second));
	assert_false(prefix_disk_has(second, a));
	prefix_disk_close(&rig->disk);
	while (prefix_disk_writes(second) == NULL)
		pause_a_little();
	assert_true(prefix_disk_has(second, a));
	rig->disk = second;
}

enum { STATE = 70001 };

static uint64_t write_state(struct rig *rig, uint64_t page, unsigned char *content)
{
	struct prefix_header h = header_of(page, 0, 0);
	struct prefix_buffer *buffer;

	memcpy(h.tokens, prefix_state_tokens, sizeof(h.tokens));
	while ((buffer = prefix_disk_writes(rig->disk)) == NULL)
		pause_a_little();
	uint64_t id = prefix_disk_write(rig->disk, buffer, &h, content);
	while (prefix_disk_pending(rig->disk, id))
		pause_a_little();
	return id;
}

static int read_state(struct rig *rig, uint64_t id, unsigned char *out)
{
	const struct prefix_header *header;
	struct prefix_buffer *buffer = prefix_disk_read(rig->disk, id, out);
	int rc;

	assert_non_null(buffer);
	while ((rc = prefix_disk_arrived(buffer, &header)) == -EINPROGRESS)
		pause_a_little();
	assert_true(rc != 0 || header->kind == PREFIX_STATE);
	prefix_disk_give(rig->disk, &buffer);
	return rc;
}

static void states_are_found_behind_their_pages(void **state)
{
	struct rig *rig = *state;
	unsigned char *content = malloc(STATE), *out = malloc(STATE);
	char path[128];

	assert_true(content != NULL && out != NULL);
	for (size_t i = 0; i < STATE; i++)
		content[i] = byte_of(3, i);
	rig->shape.n_states = 2;
	rig->shape.state_bytes = STATE;
	again(rig);
	uint64_t page = write_page(rig, 0, 0, 1), behind = write_page(rig, page, 0, 50);
	uint64_t id = write_state(rig, page, content);
	assert_true(id != 0);
	for (int round = 0; round < 2; round++) {
		assert_int_equal(prefix_disk_find(rig->disk, page, 0, prefix_state_tokens), id);
		assert_int_equal(prefix_disk_find(rig->disk, behind, 0, prefix_state_tokens), 0);
		memset(out, 0, STATE);
		assert_int_equal(read_state(rig, id, out), 0);
		assert_memory_equal(out, content, STATE);
		assert_int_equal(read_page(rig, behind, 50), 0);
		again(rig);
	}
	/* It is damaged, or taken for a page: it is lost alone. */
	path_of(rig, id, path);
	FILE *file = fopen(path, "r+b");
	assert_non_null(file);
	fseek(file, PREFIX_HEADER_BYTES + 60000, SEEK_SET);
	fputc(content[60000] ^ 1, file);
	fclose(file);
	assert_int_not_equal(read_state(rig, id, out), 0);
	assert_false(prefix_disk_has(rig->disk, id));
	assert_int_not_equal(read_state(rig, behind, out), 0);
	assert_int_equal(read_page(rig, page, 1), 0);
	free(content);
	free(out);
}

static void what_cannot_work_is_refused(void **state)
{
	struct rig *rig = *state;
	struct prefix_disk_options options = {.dir = "/proc/no/such",
		.budget = rig->budget,
		.content_bytes = CONTENT,
		.shape = rig->shape,
		.wake = wake,
		.counts = &rig->counts};
	struct prefix_disk *disk;
	struct error err;

	assert_int_equal(prefix_disk_open(&options, &disk, &err), -ENOENT);
	assert_null(disk);
	assert_non_null(strstr(err.text, "prefix_dir /proc/no/such"));
	options.dir = rig->dir;
	options.budget = FILE_BYTES - 1;
	assert_int_equal(prefix_disk_open(&options, &disk, &err), -EINVAL);
	assert_non_null(strstr(err.text, "a page of this model has 3512"));
}

int main(void)
{
#define DISK(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_header_is_read_as_it_was_written),
		cmocka_unit_test(each_damage_to_a_header_is_seen),
		cmocka_unit_test(another_shape_is_refused),
		cmocka_unit_test(what_was_found_least_goes_first_from_the_end),
		cmocka_unit_test(any_order_of_changes_keeps_the_index_whole),
		DISK(pages_are_found_again_by_their_tokens_and_domain),
		DISK(damaged_files_are_not_used),
		DISK(files_of_another_model_are_refused_and_give_way_first),
		DISK(the_budget_is_kept),
		DISK(a_write_that_fails_loses_the_page_alone),
		DISK(leftovers_and_strangers_are_told_apart),
		DISK(one_process_at_a_time_uses_a_directory),
		DISK(states_are_found_behind_their_pages),
		DISK(what_cannot_work_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
