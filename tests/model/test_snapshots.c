/*
 * Snapshots and their checksums: what a successor takes over, and what it does not, whether the sums are
 * made at once or by a thread.
 */
#include "shared/model/kv/kv_prefix.h"
#include "tests/model/rig.h"

enum { N = KV_PAGE_CELLS, STATE = 4096 };

static const struct kv_layout layout = {
	.n_layers = 1,
	.n_kv_heads = 1,
	.k_dim = 16,
	.v_dim = 16,
	.n_pages = 8,
	.n_records = 4,
	.states = {.n_layers = 1,
		.n_slots = 2,
		.n_snapshots = 3,
		.window_floats = 16,
		.state_floats = STATE - 16},
};

static const struct kv_domains domains = {1, 1, 0};

static void open_kv(struct rig *rig, bool fresh, bool apart)
{
	struct error err = {""};

	rig_kv(rig, &layout, fresh);
	kv_check(&rig->kv);
	assert_int_equal(kv_prefix_init(&rig->kv), 0);
	kv_keep_max(&rig->kv, layout.n_pages);
	if (apart)
		assert_int_equal(snapshots_sums_apart(&rig->kv, &err), 0);
}

/* A sequence of one page whose state is full of `value`, and a snapshot of it. */
static void compute(struct rig *rig, const int32_t *tokens, float value)
{
	struct kv *kv = &rig->kv;
	struct kv_seq seq;
	uint32_t cells[N];

	rig_seq(rig, &seq);
	assert_int_equal(kv_take(kv, &seq, N, cells), 0);
	recurrent_begin(&kv->states, &seq.state, N);
	float *state =
		(float *)(void *)(kv->store.host + recurrent_next(&kv->states, &seq.state, 0));
	for (uint32_t i = 0; i < STATE; i++)
		state[i] = value;
	kv_commit(kv, &seq, cells, N, NULL, 0);
	kv_prefix_enter(kv, &seq, &domains, tokens);
	snapshots_take(kv, &seq, NULL);
	kv_seq_exit(kv, &seq);
}

/* How many tokens a sequence finds; *value: what its state is full of. */
static uint32_t found(struct rig *rig, const int32_t *tokens, float *value)
{
	struct kv *kv = &rig->kv;
	struct kv_seq seq;
	uint32_t cell, tip;

	rig_seq(rig, &seq);
	uint32_t n = kv_prefix_find(kv, &seq, &domains, tokens, N, &tip);
	if (n > 0) {
		assert_true(kv_prefix_share(kv, &seq, tip));
		assert_int_equal(kv_take(kv, &seq, 1, &cell), 0);
		const float *state =
			(const float *)(void *)(kv->store.host +
						recurrent_current(&kv->states, &seq.state, 0));
		*value = state[0];
		for (uint32_t i = 0; i < STATE; i++)
			assert_true(state[i] == *value);
	}
	kv_seq_exit(kv, &seq);
	return n;
}

/* What a predecessor left that was killed: its memory, without what kv_exit does. */
static void succeed(struct rig *rig)
{
	kv_exit(&rig->kv);
	open_kv(rig, false, false);
	kv_reclaim(&rig->kv);
}

static void check(bool apart)
{
	struct rig rig = {.backend = test_backend()};
	int32_t a[N], b[N], c[N];
	float value = 0;

	rig_ids(1, 100, a, N);
	rig_ids(2, 100, b, N);
	rig_ids(3, 100, c, N);
	open_kv(&rig, true, apart);
	compute(&rig, a, 1);
	compute(&rig, b, 2);
	compute(&rig, c, 3);
	assert_int_equal(found(&rig, b, &value), N);
	assert_true(value == 2);
	/* The thread has made the sums when it has ended. */
	succeed(&rig);
	for (uint32_t i = 0; i < layout.states.n_snapshots; i++)
		assert_int_not_equal(atomic_load(&rig.kv.snapshots.meta[i].sum), 0);
	/* Killed before the sum of the first was there; the second was overwritten since. */
	atomic_store(&rig.kv.snapshots.meta[0].sum, 0);
	rig.kv.store.host[snapshots_place(&rig.kv, 1) + 5] ^= 1;
	succeed(&rig);
	assert_int_equal(found(&rig, a, &value), 0);
	assert_int_equal(found(&rig, b, &value), 0);
	assert_int_equal(found(&rig, c, &value), N);
	assert_true(value == 3);
	/* The places of those that were dropped are free again. */
	compute(&rig, a, 4);
	compute(&rig, b, 5);
	assert_int_equal(found(&rig, a, &value), N);
	assert_true(value == 4);
	kv_exit(&rig.kv);
	free(rig.memory);
}

static void a_successor_uses_states_with_the_right_checksum_alone(void **state)
{
	(void)state;
	check(false);
}

static void a_thread_makes_the_same_checksums(void **state)
{
	(void)state;
	check(true);
}

/* More states than there are snapshots, one behind the other: those whose sums are not made yet stay. */
static void a_snapshot_stays_while_its_sum_is_made(void **state)
{
	struct rig rig = {.backend = test_backend()};
	int32_t tokens[N];
	float value;

	(void)state;
	open_kv(&rig, true, true);
	for (uint64_t i = 0; i < 500; i++) {
		rig_ids(10 + i, 100, tokens, N);
		compute(&rig, tokens, (float)i);
		if (found(&rig, tokens, &value) > 0)
			assert_true(value == (float)i);
	}
	succeed(&rig);
	uint32_t kept = 0;
	for (uint64_t i = 0; i < 500; i++) {
		rig_ids(10 + i, 100, tokens, N);
		if (found(&rig, tokens, &value) == 0)
			continue;
		assert_true(value == (float)i);
		kept++;
	}
	assert_true(kept > 0 && kept <= layout.states.n_snapshots);
	kv_exit(&rig.kv);
	free(rig.memory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_successor_uses_states_with_the_right_checksum_alone),
		cmocka_unit_test(a_thread_makes_the_same_checksums),
		cmocka_unit_test(a_snapshot_stays_while_its_sum_is_made),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
