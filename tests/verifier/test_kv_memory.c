/* The KV cache's cells in the (emulated) memory of a device: what is copied out and in, and what a successor takes over. */
#include "services/verifier/state/kv_memory.h"

#include "kernels/gpu/backend.h"
#include "shared/model/kv/kv_content.h"
#include "shared/model/kv/kv_prefix.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGES = 8, CONTEXT = 200, DOMAIN = 3, NUMBER = 4711 };

static const struct kv_layout layout = {.n_layers = 2,
	.n_kv_heads = 3,
	.k_dim = 16,
	.v_dim = 16,
	.type = KV_F32,
	.n_pages = PAGES,
	.n_records = 4};

struct rig {
	struct backend *backend;
	struct queue *q;
	void *map;
	struct kv kv;
	int fd;
};

static void open_cache(struct rig *rig, struct buffer *store, bool fresh)
{
	struct error err = {""};
	assert_int_equal(kv_init(&rig->kv, rig->map, store, &layout, fresh, &err), 0);
	assert_null(rig->kv.store.host);
	kv_check(&rig->kv);
	assert_int_equal(kv_prefix_init(&rig->kv), 0);
	assert_int_equal(kv_use_queue(&rig->kv, rig->q, &err), 0);
}

static int setup(void **state)
{
	const struct backend_gpu_options options = {.device = ""};
	const struct queue_limits limits = {0};
	struct rig *rig = calloc(1, sizeof(*rig));
	struct error err = {""};
	struct buffer store;
	assert_non_null(rig);
	assert_int_equal(backend_simt_create(&options, &rig->backend, &err), 0);
	assert_int_equal(rig->backend->ops->queue(rig->backend, &limits, &rig->q, &err), 0);
	rig->map = aligned_alloc(64, kv_map_bytes(&layout));
	assert_non_null(rig->map);
	assert_int_equal(kv_memory_make(rig->backend, kv_store_bytes(&layout), NUMBER, &store,
				 &rig->fd, &err),
		0);
	open_cache(rig, &store, true);
	*state = rig;
	return 0;
}

static int teardown(void **state)
{
	struct rig *rig = *state;
	kv_exit(&rig->kv);
	rig->q->ops->queue_free(rig->q);
	rig->backend->ops->destroy(rig->backend);
	close(rig->fd);
	free(rig->map);
	free(rig);
	return 0;
}

/* Appends a page of such bytes. */
static void append(struct rig *rig, struct kv_seq *seq, unsigned char byte)
{
	size_t bytes = kv_content_bytes(&rig->kv);
	unsigned char *content = malloc(bytes);
	int32_t tokens[CONTEXT];
	uint8_t order[KV_PAGE_CELLS];
	assert_non_null(content);
	for (uint32_t i = 0; i < KV_PAGE_CELLS; i++)
		order[i] = (uint8_t)i;
	for (uint32_t i = 0; i < CONTEXT; i++)
		tokens[i] = (int32_t)i;
	for (size_t i = 0; i < bytes; i++)
		content[i] = (unsigned char)(byte + i % 7);
	assert_int_equal(kv_content_append(&rig->kv, seq, order, content), 0);
	kv_prefix_enter(&rig->kv, seq, &(const struct kv_domains){DOMAIN, DOMAIN, 0}, tokens);
	free(content);
}

/* Whether the page of that position has such bytes. */
static bool holds(struct rig *rig, const struct kv_seq *seq, uint32_t position, unsigned char byte)
{
	size_t bytes = kv_content_bytes(&rig->kv);
	unsigned char *content = malloc(bytes);
	bool right = true;
	assert_non_null(content);
	assert_int_equal(
		kv_content_read(&rig->kv, seq->cell[position] / KV_PAGE_CELLS, content), 0);
	for (size_t i = 0; i < bytes; i++)
		right = right && content[i] == (unsigned char)(byte + i % 7);
	free(content);
	return right;
}

static void pages_are_copied_out_and_in(void **state)
{
	struct rig *rig = *state;
	struct kv_seq one, two;
	assert_int_equal(kv_seq_init(&one, 7, CONTEXT), 0);
	assert_int_equal(kv_seq_init(&two, 8, CONTEXT), 0);
	append(rig, &one, 1);
	append(rig, &one, 100);
	assert_true(holds(rig, &one, 0, 1) && holds(rig, &one, KV_PAGE_CELLS, 100));
	/* The first page is shared, and part of the second is copied on the device. */
	assert_int_equal(kv_share(&rig->kv, &two, &one, KV_PAGE_CELLS + 5), KV_PAGE_CELLS + 5);
	assert_int_equal(two.cell[0], one.cell[0]);
	assert_int_not_equal(two.cell[KV_PAGE_CELLS], one.cell[KV_PAGE_CELLS]);
	assert_true(holds(rig, &two, KV_PAGE_CELLS, 100));
	kv_seq_exit(&rig->kv, &two);
	kv_seq_exit(&rig->kv, &one);
}

/* The process dies, and another one gets the map and the descriptor. */
static int restart(struct rig *rig, uint64_t number)
{
	struct error err = {""};
	struct buffer store;
	int fd = dup(rig->fd), mine;
	kv_exit(&rig->kv);
	int rc = kv_memory_adopt(
		rig->backend, fd, kv_store_bytes(&layout), number, &store, &mine, &err);
	close(fd);
	if (rc != 0) {
		assert_int_equal(rc, -ESTALE);
		assert_non_null(strstr(err.text, "another region"));
		assert_int_equal(kv_memory_adopt(rig->backend, rig->fd, kv_store_bytes(&layout),
					 NUMBER, &store, &mine, &err),
			0);
	}
	close(rig->fd);
	rig->fd = mine;
	open_cache(rig, &store, false);
	return rc;
}

static void a_successor_finds_the_cells(void **state)
{
	struct rig *rig = *state;
	struct kv_seq dead, heir;
	assert_int_equal(kv_seq_init(&dead, 7, CONTEXT), 0);
	append(rig, &dead, 1);
	append(rig, &dead, 100);
	append(rig, &dead, 200);
	uint32_t third = dead.cell[2 * KV_PAGE_CELLS] / KV_PAGE_CELLS;
	kv_seq_forget(&dead);
	assert_int_equal(restart(rig, NUMBER + 1), -ESTALE);
	assert_int_equal(restart(rig, NUMBER), 0);
	/* Positions have a checksum, although the cells have none. */
	atomic_fetch_xor((_Atomic uint32_t *)&rig->kv.meta[third].sums[1], 2);
	assert_int_equal(kv_seq_init(&heir, 7, CONTEXT), 0);
	kv_adopt(&rig->kv, &heir, CONTEXT - 1);
	assert_int_equal(heir.n, 0); /* what names the chain has that sum too */
	kv_reclaim(&rig->kv);
	append(rig, &heir, 1);
	append(rig, &heir, 100);
	kv_seq_forget(&heir);
	assert_int_equal(restart(rig, NUMBER), 0);
	assert_int_equal(kv_seq_init(&heir, 7, CONTEXT), 0);
	kv_adopt(&rig->kv, &heir, CONTEXT - 1);
	assert_int_equal(heir.n, 2 * KV_PAGE_CELLS);
	kv_reclaim(&rig->kv);
	assert_true(holds(rig, &heir, 0, 1) && holds(rig, &heir, KV_PAGE_CELLS, 100));
	kv_seq_exit(&rig->kv, &heir);
}

static void a_process_that_wrote_must_have_ended(void **state)
{
	struct error err = {""};
	(void)state;
	assert_int_equal(kv_memory_wait(0, &err), 0);
	assert_int_equal(kv_memory_wait((uint64_t)getpid(), &err), 0);
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		usleep(50000);
		_exit(0);
	}
	assert_int_equal(kv_memory_wait((uint64_t)child, &err), 0);
	/* It has ended: the call would not have come back before. */
	assert_int_equal(waitpid(child, NULL, WNOHANG), child);
	assert_int_equal(kv_memory_wait((uint64_t)child, &err), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(pages_are_copied_out_and_in, setup, teardown),
		cmocka_unit_test_setup_teardown(a_successor_finds_the_cells, setup, teardown),
		cmocka_unit_test(a_process_that_wrote_must_have_ended),
	};
	return cmocka_run_group_tests_name("kv_memory", tests, NULL, NULL);
}
