/*
 * Models with recurrent layers: the logits of a token are the same bits however its sequence came to it, through chunks,
 * drafts accepted and rejected, trees, other sequences in the batch, threads, instruction sets, a successor that found
 * half-written states. The reference is always one token at a time.
 */
#include "tests/model/rig.h"

#include "kernels/cpu/simd.h"
#include "shared/model/pass/forward_internal.h"

#include <errno.h>

enum { N = 60, K = LIMIT_DRAFT_SHARE, PREFIX = 21 };

static const char *const models[] = {
	"tests/data/golden/models/qwen3next.f32.gguf",
	"tests/data/golden/models/qwen35moe.f32.gguf",
};

/* Logits of all of ids, one token a pass, in the scalar backend on one thread. */
static float *one_by_one(const char *path, const int32_t *ids, uint32_t n)
{
	struct rig rig;
	struct kv_seq seq;
	rig_open(&rig, path, "scalar", 1, KV_F32);
	float *logits = malloc((size_t)n * rig.n_vocab * sizeof(*logits));
	assert_non_null(logits);
	rig_seq(&rig, &seq);
	rig_chain(&rig, &seq, ids, n, 1, logits);
	kv_seq_exit(&rig.kv, &seq);
	rig_close(&rig);
	return logits;
}

static void same(const struct rig *rig, const float *got, const float *expected, const char *what)
{
	for (uint32_t i = 0; i < rig->n_vocab; i++)
		if (memcmp(&got[i], &expected[i], sizeof(*got)) != 0)
			fail_msg("%s: logit %u is %a instead of %a", what, i, (double)got[i],
				(double)expected[i]);
}

/* fn with every model, backend and some numbers of threads; expected: logits of ids [N]. */
static void for_every_engine(void (*fn)(struct rig *rig, const int32_t *ids, const float *expected),
	uint32_t threads_max)
{
	for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
		int32_t ids[N];
		rig_ids(m + 5, 380, ids, N);
		float *expected = one_by_one(models[m], ids, N);
		for (const struct kernels *const *k = kernels_all; *k; k++) {
			for (uint32_t threads = 1; threads <= threads_max && (*k)->supported();
				threads++) {
				struct rig rig;
				rig_open(&rig, models[m], (*k)->name, threads, KV_F32);
				fn(&rig, ids, expected);
				rig_close(&rig);
			}
		}
		free(expected);
	}
}

static void check_chunks(struct rig *rig, const int32_t *ids, const float *expected)
{
	static const uint32_t chunks[] = {1, 2, 3, 5, 17, N};
	float *got = malloc((size_t)N * rig->n_vocab * sizeof(*got));
	for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
		struct kv_seq seq;
		rig_seq(rig, &seq);
		rig_chain(rig, &seq, ids, N, chunks[i], got);
		for (size_t t = 0; t < N; t++)
			same(rig, got + t * rig->n_vocab, expected + t * rig->n_vocab, "a chunk");
		assert_int_equal(seq.state.n, N);
		kv_seq_exit(&rig->kv, &seq);
	}
	free(got);
}

static void chunks_threads_and_instruction_sets_change_no_bit(void **state)
{
	(void)state;
	for_every_engine(check_chunks, 3);
}

/* A pass over n_certain committed tokens and a tree of drafts behind them; parents count drafts, -1 is the last
 * committed one. */
static void run_tree(struct rig *rig, struct kv_seq *seq, const int32_t *ids, uint32_t n_certain,
	const int32_t *drafts, const int *parent, uint32_t n_drafts, uint32_t *cells)
{
	struct batch_token batch[RIG_BATCH];
	uint32_t n = n_certain + n_drafts;
	assert_int_equal(kv_take(&rig->kv, seq, n, cells), 0);
	for (uint32_t i = 0; i < n; i++) {
		bool draft = i >= n_certain;
		int32_t before = (int32_t)i - 1;
		if (draft)
			before = parent[i - n_certain] < 0
					 ? (int32_t)n_certain - 1
					 : (int32_t)n_certain + parent[i - n_certain];
		batch[i] = (struct batch_token){
			.seq = seq,
			.token = draft ? drafts[i - n_certain] : ids[seq->n + i],
			.position = before < 0 ? seq->n : batch[before].position + 1,
			.parent = before,
			.logits = true,
			.cell = cells[i],
			.draft = draft,
		};
	}
	assert_int_equal(forward_run(rig->forward, batch, n), 0);
}

/* Right up to `right` drafts, wrong from there: the wrong ones are rejected, and the sequence goes on. */
static void check_rejection(struct rig *rig, const int32_t *ids, const float *expected)
{
	for (uint32_t right = 0; right <= K; right++) {
		struct kv_seq seq;
		uint32_t cells[RIG_BATCH], certain = 1 + right % 3;
		int32_t drafts[K];
		int parent[K];
		rig_seq(rig, &seq);
		rig_chain(rig, &seq, ids, PREFIX - certain, 8, NULL);
		for (uint32_t i = 0; i < K; i++) {
			drafts[i] = i < right ? ids[PREFIX + i] : (ids[PREFIX + i] + 1) % 380;
			parent[i] = (int)i - 1;
		}
		run_tree(rig, &seq, ids, certain, drafts, parent, K, cells);
		for (uint32_t i = 0; i <= right; i++)
			same(rig, forward_logits(rig->forward, certain - 1 + i),
				expected + (size_t)(PREFIX - 1 + i) * rig->n_vocab, "a draft");
		kv_commit(&rig->kv, &seq, cells, certain, NULL, 0);
		kv_commit(
			&rig->kv, &seq, cells + certain, right, cells + certain + right, K - right);
		/* The commit keeps the books, and computes nothing. */
		assert_int_equal(seq.n, PREFIX + right);
		assert_int_equal(seq.state.n, PREFIX);
		assert_int_equal(recurrent_behind(&seq.state, seq.n), right);
		forward_replay(rig->forward);
		assert_int_equal(seq.state.n, seq.n);
		float *got = malloc((size_t)N * rig->n_vocab * sizeof(*got));
		uint32_t first = seq.n;
		rig_chain(rig, &seq, ids + first, N - first, 1 + right % 4, got);
		for (size_t t = first; t < N; t++)
			same(rig, got + (t - first) * rig->n_vocab, expected + t * rig->n_vocab,
				"a token behind a rejection");
		free(got);
		kv_seq_exit(&rig->kv, &seq);
	}
}

static void drafts_rejected_anywhere_leave_no_trace(void **state)
{
	(void)state;
	for_every_engine(check_rejection, 2);
}

/* Random trees in which the right continuation is one path, accepted; again and again, with the same sequence. */
static void check_trees(struct rig *rig, const int32_t *ids, const float *expected)
{
	uint64_t random = 77;
	for (int round = 0; round < 4; round++) {
		struct kv_seq seq;
		rig_seq(rig, &seq);
		rig_chain(rig, &seq, ids, 3 + (uint32_t)round, 2, NULL);
		while (seq.n + K + 2 < N) {
			uint32_t cells[RIG_BATCH], accepted[K] = {0}, rejected[K], n_accepted = 0;
			uint32_t n_rejected = 0, depth[K] = {0}, root = seq.n;
			int32_t drafts[K];
			int parent[K], right = -1;
			for (int i = 0; i < K; i++) {
				parent[i] = (int)(rig_random(&random) % (uint64_t)(i + 1)) - 1;
				if (rig_random(&random) % 2)
					parent[i] = right;
				depth[i] = parent[i] < 0 ? 0 : depth[parent[i]] + 1;
				/* Behind the right path, half of the time, its next token; else a wrong one. */
				bool on_path = parent[i] == right && rig_random(&random) % 2;
				drafts[i] = (ids[root + 1 + depth[i]] + !on_path) % 380;
				if (on_path) {
					right = i;
					accepted[n_accepted++] = (uint32_t)i;
				}
			}
			run_tree(rig, &seq, ids, 1, drafts, parent, K, cells);
			same(rig, forward_logits(rig->forward, 0),
				expected + (size_t)root * rig->n_vocab, "the root of a tree");
			for (uint32_t i = 0, a = 0; i < K; i++) {
				if (a == n_accepted || accepted[a] != i) {
					rejected[n_rejected++] = cells[1 + i];
					continue;
				}
				same(rig, forward_logits(rig->forward, 1 + i),
					expected + (size_t)(root + 1 + a) * rig->n_vocab,
					"a branch");
				accepted[a++] = cells[1 + i];
			}
			kv_commit(&rig->kv, &seq, cells, 1, NULL, 0);
			kv_commit(&rig->kv, &seq, accepted, n_accepted, rejected, n_rejected);
			forward_replay(rig->forward);
			assert_int_equal(seq.state.n, seq.n);
		}
		kv_seq_exit(&rig->kv, &seq);
	}
}

static void trees_change_no_bit(void **state)
{
	(void)state;
	for_every_engine(check_trees, 2);
}

/* Every node of a tree against the same path run as a sequence of its own. */
static void branches_see_their_own_ancestors_only(void **state)
{
	static const int parent[8] = {-1, -1, 0, 0, 1, 3, 2, 5};
	(void)state;
	for (size_t m = 0; m < sizeof(models) / sizeof(models[0]); m++) {
		struct rig rig;
		struct kv_seq seq;
		int32_t ids[PREFIX + 1], drafts[8];
		uint32_t cells[RIG_BATCH];
		rig_open(&rig, models[m], "auto", 2, KV_F16);
		rig_ids(3, 380, ids, PREFIX + 1);
		rig_ids(4, 380, drafts, 8);
		rig_seq(&rig, &seq);
		rig_chain(&rig, &seq, ids, PREFIX, 64, NULL);
		run_tree(&rig, &seq, ids, 1, drafts, parent, 8, cells);
		float *got = malloc(8 * rig.n_vocab * sizeof(*got));
		float *alone = malloc((PREFIX + 9) * rig.n_vocab * sizeof(*got));
		for (uint32_t i = 0; i < 8; i++)
			memcpy(got + i * rig.n_vocab, forward_logits(rig.forward, 1 + i),
				rig.n_vocab * sizeof(*got));
		for (int i = 0; i < 8; i++) {
			int32_t path[PREFIX + 9];
			uint32_t depth = 0;
			struct kv_seq other;
			for (int at = i; at >= 0; at = parent[at])
				depth++;
			memcpy(path, ids, sizeof(ids));
			for (int at = i, d = (int)depth; at >= 0; at = parent[at])
				path[PREFIX + d--] = drafts[at];
			rig_seq(&rig, &other);
			rig_chain(&rig, &other, path, PREFIX + 1 + depth, 64, alone);
			same(&rig, got + (uint32_t)i * rig.n_vocab,
				alone + (PREFIX + depth) * rig.n_vocab, "a node of a tree");
			kv_seq_exit(&rig.kv, &other);
		}
		free(got);
		free(alone);
		kv_seq_exit(&rig.kv, &seq);
		rig_close(&rig);
	}
}

/* Sequences at different places, shuffled into one batch, some with drafts. */
static void check_sequences(struct rig *rig, const int32_t *ids, const float *expected)
{
	enum { SEQS = 5, TOKENS = 6 };
	static const uint32_t done[SEQS] = {0, 1, 7, 31, 40};
	struct kv_seq seqs[SEQS];
	struct batch_token batch[RIG_BATCH];
	uint32_t cells[SEQS][TOKENS], n = 0;
	int32_t last[SEQS];
	for (uint32_t s = 0; s < SEQS; s++) {
		rig_seq(rig, &seqs[s]);
		rig_chain(rig, &seqs[s], ids, done[s], 16, NULL);
		assert_int_equal(kv_take(&rig->kv, &seqs[s], TOKENS, cells[s]), 0);
	}
	for (uint32_t i = 0; i < TOKENS; i++) {
		for (uint32_t s = 0; s < SEQS; s++) {
			batch[n] = (struct batch_token){&seqs[s], ids[done[s] + i], done[s] + i,
				i ? last[s] : -1, true, cells[s][i], i > s, false};
			last[s] = (int32_t)n++;
		}
	}
	assert_int_equal(forward_run(rig->forward, batch, n), 0);
	for (uint32_t i = 0; i < n; i++)
		same(rig, forward_logits(rig->forward, i),
			expected + (size_t)batch[i].position * rig->n_vocab, "a shared batch");
	/* Of some, drafts are accepted: one replay does them all. */
	for (uint32_t s = 0; s < SEQS; s++) {
		uint32_t drafts = TOKENS - s - 1, right = s % 2 ? drafts : s / 2 % (drafts + 1);
		kv_commit(&rig->kv, &seqs[s], cells[s], s + 1, NULL, 0);
		kv_commit(&rig->kv, &seqs[s], cells[s] + s + 1, right, cells[s] + s + 1 + right,
			drafts - right);
	}
	forward_replay(rig->forward);
	for (uint32_t s = 0; s < SEQS; s++) {
		assert_int_equal(seqs[s].state.n, seqs[s].n);
		float got[512];
		assert_true(rig->n_vocab <= 512);
		rig_chain(rig, &seqs[s], ids + seqs[s].n, 1, 1, got);
		same(rig, got, expected + (size_t)(seqs[s].n - 1) * rig->n_vocab, "afterwards");
		kv_seq_exit(&rig->kv, &seqs[s]);
	}
}

static void other_sequences_in_the_batch_change_no_bit(void **state)
{
	(void)state;
	for_every_engine(check_sequences, 2);
}

/* What a successor has: the memory, whatever state it was left in. */
static void succeed(struct rig *rig, struct kv_seq *seq, uint32_t limit)
{
	struct kv_layout layout = rig->kv.layout;
	uint64_t owner = seq->owner;
	kv_seq_forget(seq);
	kv_exit(&rig->kv);
	rig_kv(rig, &layout, false);
	assert_int_equal(kv_seq_init(seq, owner, RIG_CONTEXT), 0);
	kv_adopt(&rig->kv, seq, limit);
	kv_reclaim(&rig->kv);
}

static void go_on(struct rig *rig, struct kv_seq *seq, const int32_t *ids, const float *expected)
{
	float *got = malloc((size_t)N * rig->n_vocab * sizeof(*got));
	uint32_t first = seq->n;
	assert_int_equal(seq->state.held ? seq->state.n : 0, seq->n);
	rig_chain(rig, seq, ids + first, N - first, 7, got);
	for (size_t t = first; t < N; t++)
		same(rig, got + (t - first) * rig->n_vocab, expected + t * rig->n_vocab,
			"a token of the successor");
	free(got);
}

static void scribble(struct rig *rig, struct kv_seq *seq)
{
	for (uint32_t layer = 0; layer < rig->kv.states.layout.n_layers; layer++)
		memset(rig->kv.store.host + recurrent_next(&rig->kv.states, &seq->state, layer),
			0x5a, rig->kv.states.layer_floats * sizeof(float) / 2);
}

/* Killed at each moment at which a buffer may be half-written or the cells are ahead of the state. */
static void check_successor(struct rig *rig, const int32_t *ids, const float *expected)
{
	static const int parent[3] = {-1, 0, 1};
	for (int moment = 0; moment < 7; moment++) {
		static const uint32_t expect_n[] = {18, 18, 20, 18, 16, 0, 0};
		struct kv_seq seq;
		uint32_t cells[RIG_BATCH], limit = RIG_CONTEXT;
		if (moment >= 4)
			limit = moment == 5 ? 9 : 17;
		rig_seq(rig, &seq);
		rig_chain(rig, &seq, ids, 16, 16, NULL);
		rig_chain(rig, &seq, ids + 16, 2, 2, NULL);
		if (moment < 3 || moment == 6)
			run_tree(rig, &seq, ids, 2, ids + 20, parent, 3, cells);
		if (moment == 0 || moment == 6) /* in the pass */
			scribble(rig, &seq);
		if (moment == 1) { /* the cells have become tokens, the state has not */
			for (uint32_t i = 0; i < 2; i++)
				atomic_store(&rig->kv.meta[cells[i] / KV_PAGE_CELLS]
						      .position[cells[i] % KV_PAGE_CELLS],
					18 + (int32_t)i);
		}
		if (moment == 2) { /* in the replay of accepted drafts */
			kv_commit(&rig->kv, &seq, cells, 2, NULL, 0);
			recurrent_begin(&rig->kv.states, &seq.state, 0);
			scribble(rig, &seq);
		}
		/* 3: between passes. 4 to 6: not all tokens may be taken over; in 6 the state that could be is the one
		 * being overwritten. */
		succeed(rig, &seq, limit);
		assert_int_equal(seq.n, expect_n[moment]);
		go_on(rig, &seq, ids, expected);
		kv_seq_exit(&rig->kv, &seq);
	}
}

static void a_successor_takes_over_the_newest_complete_state(void **state)
{
	(void)state;
	for_every_engine(check_successor, 1);
}

static void check_truncation(struct rig *rig, const int32_t *ids, const float *expected)
{
	struct kv_seq seq;
	rig_seq(rig, &seq);
	rig_chain(rig, &seq, ids, 30, 10, NULL);
	kv_truncate(&rig->kv, &seq, 30);
	assert_int_equal(seq.n, 30);
	kv_truncate(&rig->kv, &seq, 25);
	assert_int_equal(seq.n, 20);
	kv_truncate(&rig->kv, &seq, 19);
	assert_int_equal(seq.n, 0);
	go_on(rig, &seq, ids, expected);
	kv_truncate(&rig->kv, &seq, 3);
	go_on(rig, &seq, ids, expected);
	kv_seq_exit(&rig->kv, &seq);
}

static void a_pass_before_the_replay_is_refused(void **state)
{
	static const int parent[2] = {-1, 0};
	struct rig rig;
	struct kv_seq seq;
	int32_t ids[N];
	uint32_t cells[RIG_BATCH];
	(void)state;
	rig_open(&rig, models[0], "auto", 1, KV_F32);
	rig_ids(5, 380, ids, N);
	rig_seq(&rig, &seq);
	rig_chain(&rig, &seq, ids, 8, 8, NULL);
	run_tree(&rig, &seq, ids, 1, ids + 9, parent, 2, cells);
	kv_commit(&rig.kv, &seq, cells, 1, NULL, 0);
	kv_commit(&rig.kv, &seq, cells + 1, 2, NULL, 0);
	assert_int_equal(kv_take(&rig.kv, &seq, 1, cells), 0);
	struct batch_token next = {&seq, ids[11], seq.n, -1, false, cells[0], false, false};
	assert_int_equal(forward_run(rig.forward, &next, 1), -EINVAL);
	/* What it would have replayed is gone now: the tokens are taken back. */
	kv_commit(&rig.kv, &seq, NULL, 0, cells, 1);
	kv_truncate(&rig.kv, &seq, seq.n - 1);
	assert_int_equal(seq.n, 9);
	rig_chain(&rig, &seq, ids + 9, 2, 1, NULL);
	kv_seq_exit(&rig.kv, &seq);
	rig_close(&rig);
}

static void truncating_goes_back_to_a_state_that_is_there(void **state)
{
	(void)state;
	for_every_engine(check_truncation, 1);
}

static void a_sequence_without_a_slot_gets_no_cells(void **state)
{
	struct rig rig;
	struct kv_seq seqs[RIG_STATES + 1];
	uint32_t cell;
	(void)state;
	rig_open(&rig, models[0], "auto", 1, KV_F16);
	for (uint32_t i = 0; i <= RIG_STATES; i++) {
		rig_seq(&rig, &seqs[i]);
		assert_int_equal(
			kv_take(&rig.kv, &seqs[i], 1, &cell), i < RIG_STATES ? 0 : -ENOSPC);
	}
	assert_int_equal(seqs[RIG_STATES].n_pages, 0);
	kv_seq_exit(&rig.kv, &seqs[4]);
	assert_int_equal(kv_take(&rig.kv, &seqs[RIG_STATES], 1, &cell), 0);
	for (uint32_t i = 0; i <= RIG_STATES; i++)
		if (i != 4)
			kv_seq_exit(&rig.kv, &seqs[i]);
	rig_close(&rig);
}

/* Drafts that something certain hangs on, or that hang on anything but the last certain token or a draft. */
static void batches_whose_state_cannot_be_had_are_refused(void **state)
{
	static const struct {
		int32_t parent;
		bool draft;
	} wrong[][3] = {
		{{-1, true}, {0, false}, {1, false}},
		{{-1, false}, {0, true}, {0, false}},
		{{-1, false}, {0, false}, {0, true}},
		{{-1, false}, {-1, true}, {1, true}},
		{{-1, false}, {-1, false}, {0, true}},
	};
	struct rig rig;
	struct kv_seq seq;
	uint32_t cells[3];
	(void)state;
	rig_open(&rig, models[0], "auto", 1, KV_F16);
	rig_seq(&rig, &seq);
	assert_int_equal(kv_take(&rig.kv, &seq, 3, cells), 0);
	for (size_t w = 0; w < sizeof(wrong) / sizeof(wrong[0]); w++) {
		struct batch_token batch[3] = {{0}};
		for (uint32_t i = 0; i < 3; i++) {
			int32_t parent = wrong[w][i].parent;
			batch[i] = (struct batch_token){.seq = &seq,
				.token = 7,
				.position = parent < 0 ? 0 : batch[parent].position + 1,
				.parent = parent,
				.cell = cells[i],
				.draft = wrong[w][i].draft};
		}
		assert_int_equal(forward_run(rig.forward, batch, 3), -EINVAL);
	}
	kv_seq_exit(&rig.kv, &seq);
	rig_close(&rig);
}

/* What a pass allocates more with the limits than with room for no draft. */
static size_t more_for_drafts(struct rig *rig, struct forward_limits limits)
{
	size_t bytes[2];
	struct error err;
	for (int i = 0; i < 2; i++) {
		forward_destroy(&rig->forward);
		assert_int_equal(forward_create(rig->model, rig->backend, &rig->kv,
					 &rig->experts.source, &limits, &rig->forward, &err),
			0);
		bytes[i] = rig->forward->memory.bytes + rig->forward->batch.bytes;
		limits.n_drafts = 0;
	}
	return bytes[0] - bytes[1];
}

/* A service's memory is planned with forward_bytes before a pass is created. */
static void the_rows_of_drafts_are_planned_for(void **state)
{
	(void)state;
	for (size_t m = 0; m < sizeof(models) / sizeof(*models); m++) {
		struct rig rig;
		rig_open(&rig, models[m], NULL, 1, KV_F16);
		struct forward_limits some = rig_limits(RIG_CONTEXT), none = some;
		none.n_drafts = 0;
		size_t planned = forward_bytes(rig.model, rig.backend, &some) -
				 forward_bytes(rig.model, rig.backend, &none);
		size_t rows = (size_t)rig.model->config.delta.n_layers * some.n_drafts;
		assert_true(planned > rows * sizeof(float));
		/* The queue of one thread has a path through them. */
		size_t path = some.n_drafts * sizeof(uint32_t);
		assert_int_equal(planned, more_for_drafts(&rig, some) + path);
		rig_close(&rig);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(chunks_threads_and_instruction_sets_change_no_bit),
		cmocka_unit_test(drafts_rejected_anywhere_leave_no_trace),
		cmocka_unit_test(trees_change_no_bit),
		cmocka_unit_test(branches_see_their_own_ancestors_only),
		cmocka_unit_test(other_sequences_in_the_batch_change_no_bit),
		cmocka_unit_test(a_successor_takes_over_the_newest_complete_state),
		cmocka_unit_test(a_pass_before_the_replay_is_refused),
		cmocka_unit_test(truncating_goes_back_to_a_state_that_is_there),
		cmocka_unit_test(a_sequence_without_a_slot_gets_no_cells),
		cmocka_unit_test(batches_whose_state_cannot_be_had_are_refused),
		cmocka_unit_test(the_rows_of_drafts_are_planned_for),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
