/*
 * Batch invariance, to the bit: whatever way tokens reach the forward pass, each gets the logits it gets alone, one
 * token at a time, from the scalar kernels on one thread. For every backend this CPU has, 1 to 3 threads, every KV type.
 */
#include "tests/model/rig.h"

#include "kernels/cpu/simd.h"

#define N 96 /* tokens of a sequence */

static const char *const models[] = {
	"tests/data/golden/models/mixtral.f32.gguf",
	"tests/data/golden/models/llama-dense.f32.gguf",
	"tests/data/golden/models/qwen3moe.f32.gguf",
	"tests/data/golden/models/gpt-oss.f32.gguf",
	"tests/data/golden/quants/qwen3moe-256.Q4_0.gguf",
	"tests/data/golden/quants/qwen3moe-256.Q4_1.gguf",
	"tests/data/golden/quants/qwen3moe-256.Q8_0.gguf",
	/* One KV type is enough for what is new in these. */
	"tests/data/golden/models/phimoe.f32.gguf",
	"tests/data/golden/models/olmoe.f32.gguf",
	"tests/data/golden/models/qwen2moe.f32.gguf",
	"tests/data/golden/models/glm4moe.f32.gguf",
	"tests/data/golden/models/deepseek2-v3.f32.gguf",
	"tests/data/golden/models/deepseek2-lite.legacy.f32.gguf",
};

/* Sanitizers take ten times as long and more: the first four have every kind of layer; for races one is enough, as the
 * quantised paths share the cutting of the work and run with two threads in the tests below. */
#define MODELS_OF_ONE_KV_TYPE 7
#if defined(__SANITIZE_THREAD__)
#define MODELS_TRIED 1
#elif defined(__SANITIZE_ADDRESS__)
#define MODELS_TRIED 4
#else
#define MODELS_TRIED (sizeof(models) / sizeof(*models))
#endif

/* One token at a time, scalar, one thread. */
static float *reference(const char *path, enum kv_type type, const int32_t *ids, uint32_t n)
{
	struct rig rig;
	struct kv_seq seq;
	rig_open(&rig, path, "scalar", 1, type);
	rig_seq(&rig, &seq);
	float *logits = malloc((size_t)n * rig.n_vocab * sizeof(*logits));
	assert_non_null(logits);
	rig_chain(&rig, &seq, ids, n, 1, logits);
	kv_seq_exit(&rig.kv, &seq);
	rig_close(&rig);
	return logits;
}

/* The types' code has nothing to do with the architecture's: after the first models each further one meets one type. */
static bool meets(size_t model, int type)
{
	if (model >= MODELS_OF_ONE_KV_TYPE)
		return type == KV_Q16_0;
	return model <= 2 || (int)model % 4 == type;
}

/* What a failure says of where it was. */
static char where[160];

static void same(const struct rig *rig, const float *got, const float *expected, uint32_t rows)
{
	if (memcmp(got, expected, (size_t)rows * rig->n_vocab * sizeof(*got)) == 0)
		return;
	for (uint32_t i = 0; i < rows * rig->n_vocab; i++)
		if (memcmp(&got[i], &expected[i], sizeof(*got)) != 0)
			fail_msg("%s: row %u, logit %u: %a instead of %a", where, i / rig->n_vocab,
				i % rig->n_vocab, (double)got[i], (double)expected[i]);
}

static void check_chunks(struct rig *rig, const int32_t *ids, const float *expected)
{
	static const uint32_t chunks[] = {1, 7, 64};
	float *got = malloc((size_t)N * rig->n_vocab * sizeof(*got));
	for (size_t i = 0; i < 3; i++) {
		struct kv_seq seq;
		rig_seq(rig, &seq);
		rig_chain(rig, &seq, ids, N, chunks[i], got);
		same(rig, got, expected, N);
		kv_seq_exit(&rig->kv, &seq);
	}
	free(got);
}

/* Several sequences, each at its own place in the same text, all in one pass, in shuffled order of sequences. */
static void check_sessions(struct rig *rig, const int32_t *ids, const float *expected)
{
	enum { SEQS = 9 };
	static const uint32_t done[SEQS] = {0, 1, 5, 31, 32, 33, 63, 70, 90};
	static const uint32_t next[SEQS] = {3, 1, 16, 2, 1, 5, 8, 4, 6};
	struct kv_seq seqs[SEQS];
	struct batch_token batch[RIG_BATCH];
	uint32_t cells[SEQS][16], n = 0;
	for (uint32_t s = 0; s < SEQS; s++) {
		rig_seq(rig, &seqs[s]);
		rig_chain(rig, &seqs[s], ids, done[s], 64, NULL);
		assert_int_equal(kv_take(&rig->kv, &seqs[s], next[s], cells[s]), 0);
	}
	/* Round robin: the tokens of one sequence are not neighbours in the batch. */
	int32_t last[SEQS];
	for (uint32_t i = 0; i < 16; i++) {
		for (uint32_t s = 0; s < SEQS; s++) {
			if (i >= next[s])
				continue;
			batch[n] = (struct batch_token){&seqs[s], ids[done[s] + i], done[s] + i,
				i ? last[s] : -1, true, cells[s][i], false, false};
			last[s] = (int32_t)n++;
		}
	}
	assert_int_equal(forward_run(rig->forward, batch, n), 0);
	for (uint32_t t = 0; t < n; t++)
		same(rig, forward_logits(rig->forward, t),
			expected + (size_t)batch[t].position * rig->n_vocab, 1);
	for (uint32_t s = 0; s < SEQS; s++)
		kv_seq_exit(&rig->kv, &seqs[s]);
}

/* Drafts of K tokens of which a part is right: the logits up to the first wrong one are those of K = 0, and after the
 * wrong ones are dropped so are the next. */
static void check_verification(struct rig *rig, const int32_t *ids, const float *expected)
{
	struct kv_seq seq;
	uint64_t random = 7;
	rig_seq(rig, &seq);
	rig_chain(rig, &seq, ids, 10, 64, NULL);
	for (uint32_t step = 0; seq.n < N; step++) {
		uint32_t k = step % 16, right = (uint32_t)(rig_random(&random) % (k + 1));
		uint32_t left = N - seq.n;
		k = k < left - 1 ? k : left - 1;
		right = right < k ? right : k;
		struct batch_token batch[16];
		uint32_t cells[16];
		assert_int_equal(kv_take(&rig->kv, &seq, k + 1, cells), 0);
		for (uint32_t i = 0; i <= k; i++) {
			int32_t id = ids[seq.n + i];
			if (i > right)
				id = (int32_t)(rig_random(&random) % rig->n_vocab);
			batch[i] = (struct batch_token){
				&seq, id, seq.n + i, (int32_t)i - 1, true, cells[i], false, false};
		}
		assert_int_equal(forward_run(rig->forward, batch, k + 1), 0);
		for (uint32_t i = 0; i <= right; i++)
			same(rig, forward_logits(rig->forward, i),
				expected + (size_t)(seq.n + i) * rig->n_vocab, 1);
		kv_commit(&rig->kv, &seq, cells, right + 1, cells + right + 1, k - right);
	}
	kv_seq_exit(&rig->kv, &seq);
}

enum { TREE = 16, TREE_ROOT = 20, TREE_PATH = 6 };

/* Random trees in which the branch that goes on as ids is hidden among others: its nodes must have the logits of the
 * chain, wherever they are. Other branches must have those they have alone. */
static void check_tree(struct rig *rig, const int32_t *ids, const float *expected)
{
	for (uint64_t seed = 0; seed < 6; seed++) {
		uint64_t random = seed;
		struct kv_seq seq, alone;
		struct batch_token batch[TREE] = {0};
		uint32_t cells[TREE], path = 0;
		int32_t path_node = -1;
		rig_seq(rig, &seq);
		rig_chain(rig, &seq, ids, TREE_ROOT, 64, NULL);
		assert_int_equal(kv_take(&rig->kv, &seq, TREE, cells), 0);
		for (int32_t i = 0; i < TREE; i++) {
			int32_t parent = (int32_t)(rig_random(&random) % (uint64_t)(i + 1)) - 1;
			int32_t id = (int32_t)(rig_random(&random) % rig->n_vocab);
			bool on = path < TREE_PATH &&
				  (rig_random(&random) % 2 || TREE - i <= TREE_PATH);
			if (on) {
				parent = path_node;
				path_node = i;
				id = ids[TREE_ROOT + path++];
			}
			uint32_t position = parent < 0 ? TREE_ROOT : batch[parent].position + 1;
			batch[i] = (struct batch_token){
				&seq, id, position, parent, true, cells[i], false, false};
		}
		assert_int_equal(forward_run(rig->forward, batch, TREE), 0);
		float *rows = malloc((size_t)TREE * rig->n_vocab * sizeof(*rows));
		for (int32_t i = 0; i < TREE; i++)
			memcpy(rows + (size_t)i * rig->n_vocab,
				forward_logits(rig->forward, (uint32_t)i),
				rig->n_vocab * sizeof(*rows));
		for (int32_t i = path_node; i >= 0; i = batch[i].parent)
			same(rig, rows + (size_t)i * rig->n_vocab,
				expected + (size_t)batch[i].position * rig->n_vocab, 1);
		/* The last node's path by itself. */
		int32_t chain[TREE], length = (int32_t)(batch[TREE - 1].position - TREE_ROOT) + 1;
		for (int32_t i = TREE - 1, at = length; i >= 0; i = batch[i].parent)
			chain[--at] = batch[i].token;
		float *lone = malloc((size_t)length * rig->n_vocab * sizeof(*lone));
		rig_seq(rig, &alone);
		rig_chain(rig, &alone, ids, TREE_ROOT, 7, NULL);
		rig_chain(rig, &alone, chain, (uint32_t)length, 1, lone);
		same(rig, rows + (size_t)(TREE - 1) * rig->n_vocab,
			lone + (size_t)(length - 1) * rig->n_vocab, 1);
		free(lone);
		free(rows);
		kv_seq_exit(&rig->kv, &alone);
		kv_seq_exit(&rig->kv, &seq);
	}
}

static const struct {
	const char *what;
	void (*check)(struct rig *rig, const int32_t *ids, const float *expected);
} checks[] = {
	{"a prompt in chunks", check_chunks},
	{"many sessions in a batch", check_sessions},
	{"verification of any K", check_verification},
	{"trees", check_tree},
};

static void check_engine(const char *path, const struct kernels *kernels, uint32_t threads,
	enum kv_type type, const int32_t *ids, const float *expected)
{
	struct rig rig;

	rig_open(&rig, path, kernels->name, threads, type);
	for (size_t i = 0; i < sizeof(checks) / sizeof(*checks); i++) {
		snprintf(where, sizeof(where), "%s: %s kernels, %u threads, KV %s", checks[i].what,
			kernels->name, threads, kv_type_name(type));
		checks[i].check(&rig, ids, expected);
	}
	rig_close(&rig);
}

/* Chunks of a prompt, many sessions, drafts and trees: with every backend, thread count and KV type
 * that the model meets. */
static void no_way_through_a_pass_changes_a_bit(void **state)
{
	size_t m = (size_t)((const char *const *)*state - models);
	int32_t ids[N];
	struct error err;
	struct model *model;

	assert_int_equal(model_load(models[m], &model, &err), 0);
	rig_ids(1, model->config.n_vocab, ids, N);
	model_free(&model);
	for (int type = KV_F32; type <= KV_Q16_0; type++) {
		if (!meets(m, type))
			continue;
		float *expected = reference(models[m], (enum kv_type)type, ids, N);
		for (const struct kernels *const *k = kernels_all; *k; k++) {
			if (strcmp((*k)->name, "reference") == 0)
				continue; /* its activations are not these, nor its bits */
			for (uint32_t threads = 1; threads <= 3 && (*k)->supported(); threads++)
				check_engine(
					models[m], *k, threads, (enum kv_type)type, ids, expected);
		}
		free(expected);
	}
}

static void an_accepted_branch_becomes_the_sequence(void **state)
{
	(void)state;
	struct rig rig;
	struct kv_seq seq;
	int32_t ids[N];
	rig_open(&rig, models[2], NULL, 2, KV_F32);
	rig_ids(5, rig.n_vocab, ids, N);
	float *expected = reference(models[2], KV_F32, ids, N);
	rig_seq(&rig, &seq);
	rig_chain(&rig, &seq, ids, 8, 64, NULL);
	/* Two branches of three; the second, not the main chain, is right. */
	struct batch_token batch[6];
	uint32_t cells[6];
	assert_int_equal(kv_take(&rig.kv, &seq, 6, cells), 0);
	for (uint32_t i = 0; i < 6; i++)
		batch[i] = (struct batch_token){&seq, i < 3 ? 1 : ids[8 + i - 3], 8 + i % 3,
			i % 3 ? (int32_t)i - 1 : -1, true, cells[i], false, false};
	assert_int_equal(forward_run(rig.forward, batch, 6), 0);
	kv_commit(&rig.kv, &seq, cells + 3, 3, cells, 3);
	float *got = malloc((size_t)N * rig.n_vocab * sizeof(*got));
	rig_chain(&rig, &seq, ids + 11, N - 11, 16, got);
	same(&rig, got, expected + (size_t)11 * rig.n_vocab, N - 11);
	free(got);
	free(expected);
	kv_seq_exit(&rig.kv, &seq);
	rig_close(&rig);
}

static void contradictory_batches_are_refused(void **state)
{
	(void)state;
	struct rig rig;
	struct kv_seq seq, other;
	uint32_t cells[4];
	rig_open(&rig, models[1], NULL, 1, KV_F32);
	rig_seq(&rig, &seq);
	rig_seq(&rig, &other);
	assert_int_equal(kv_take(&rig.kv, &seq, 4, cells), 0);
	struct batch_token good[2] = {{&seq, 1, 0, -1, true, cells[0], false, false},
		{&seq, 2, 1, 0, true, cells[1], false, false}};
	struct batch_token bad[2];
	assert_int_equal(forward_run(rig.forward, good, 2), 0);
	assert_int_equal(forward_run(rig.forward, good, 0), -EINVAL);
	assert_int_equal(forward_run(rig.forward, good, RIG_BATCH + 1), -EINVAL);
#define REFUSED(field, value)                                                \
	do {                                                                 \
		memcpy(bad, good, sizeof(bad));                              \
		bad[1].field = (value);                                      \
		assert_int_equal(forward_run(rig.forward, bad, 2), -EINVAL); \
	} while (0)
	REFUSED(parent, 1);
	REFUSED(parent, -2);
	REFUSED(parent, -1);
	REFUSED(position, 2);
	REFUSED(seq, &other);
	REFUSED(seq, NULL);
	REFUSED(token, -1);
	REFUSED(token, (int32_t)rig.n_vocab);
	REFUSED(cell, RIG_PAGES * KV_PAGE_CELLS);
	kv_seq_exit(&rig.kv, &other);
	kv_seq_exit(&rig.kv, &seq);
	rig_close(&rig);
}

struct seen {
	uint32_t calls, n_tokens;
	bool ordered, distinct;
};

static void look(void *arg, uint32_t layer, uint32_t n_tokens, const uint16_t *experts,
	const float *weights, const struct rows *hidden)
{
	struct seen *seen = arg;
	assert_int_equal(layer, seen->calls++);
	assert_int_equal(hidden->n, n_tokens);
	seen->n_tokens = n_tokens;
	for (uint32_t t = 0; t < n_tokens; t++) {
		for (uint32_t i = 1; i < 4; i++) {
			seen->ordered &= weights[t * 4 + i] <= weights[t * 4 + i - 1];
			for (uint32_t j = 0; j < i; j++)
				seen->distinct &= experts[t * 4 + i] != experts[t * 4 + j];
		}
	}
}

static void hooks_see_each_layer_once_with_ordered_experts(void **state)
{
	(void)state;
	struct rig rig;
	struct kv_seq seq;
	struct seen seen = {.ordered = true, .distinct = true};
	int32_t ids[16];
	rig_open(&rig, models[2], NULL, 2, KV_F32);
	rig_ids(6, rig.n_vocab, ids, 16);
	rig_seq(&rig, &seq);
	forward_set_hooks(rig.forward, &(struct forward_hooks){.layer = look, .arg = &seen});
	rig_chain(&rig, &seq, ids, 16, 16, NULL);
	assert_int_equal(seen.calls, rig.model->config.n_layers);
	assert_int_equal(seen.n_tokens, 16);
	assert_true(seen.ordered && seen.distinct);
	assert_true(forward_stats(rig.forward)->unique_experts >= 4 * rig.model->config.n_layers);
	assert_true(rig.experts.source.stats.hits == rig.experts.source.stats.lookups);
	kv_seq_exit(&rig.kv, &seq);
	rig_close(&rig);
}

/* An expert source that hands experts over one at a time, last first, or fails: arrival order must not show. */
struct late {
	struct experts_mapped mapped, inner;
	struct expert_view views[LIMIT_EXPERTS];
	int n, ends;
	bool broken;
	ticket until;
};

static void late_begin(struct expert_source *source, uint32_t layer, const uint16_t *experts,
	const uint16_t *tokens, uint32_t n)
{
	struct late *late = (struct late *)source;
	late->inner.source.ops->begin(&late->inner.source, layer, experts, tokens, n);
	late->n = late->inner.source.ops->ready(&late->inner.source, late->views);
}

static int late_ready(struct expert_source *source, struct expert_view *views)
{
	struct late *late = (struct late *)source;
	if (late->broken && late->n == 1)
		return -EIO;
	if (late->n == 0)
		return 0;
	views[0] = late->views[--late->n];
	return 1;
}

/* Each view is of one step. */
static void late_used(struct expert_source *source, struct queue *q, ticket t)
{
	struct late *late = (struct late *)source;
	assert_true(t > late->until);
	assert_int_equal(q->ops->wait(q, t), 0);
	late->until = t;
}

static void late_end(struct expert_source *source)
{
	((struct late *)source)->ends++;
}

static void the_order_in_which_experts_arrive_changes_no_bit(void **state)
{
	(void)state;
	static const struct expert_source_ops ops = {.name = "late",
		.begin = late_begin,
		.ready = late_ready,
		.used = late_used,
		.end = late_end};
	static struct late late;
	int32_t ids[N];
	struct error err;
	struct rig rig;
	struct kv_seq seq;
	struct forward *forward;
	rig_open(&rig, models[3], NULL, 2, KV_F16);
	rig_ids(8, rig.n_vocab, ids, N);
	float *expected = reference(models[3], KV_F16, ids, N);
	assert_int_equal(experts_mapped_init(&late.mapped, rig.model, rig.backend, &err), 0);
	assert_int_equal(experts_mapped_init(&late.inner, rig.model, rig.backend, &err), 0);
	late.mapped.source.ops = &ops;
	assert_int_equal(forward_create(rig.model, rig.backend, &rig.kv, &late.mapped.source,
				 &rig_limits(RIG_CONTEXT), &forward, &err),
		0);
	forward_destroy(&rig.forward);
	rig.forward = forward;
	rig_seq(&rig, &seq);
	float *got = malloc((size_t)N * rig.n_vocab * sizeof(*got));
	rig_chain(&rig, &seq, ids, N, 64, got);
	same(&rig, got, expected, N);
	free(got);
	free(expected);

	/* A failed read is reported, and what was pinned is let go. */
	uint32_t cell;
	late.broken = true;
	late.ends = 0;
	assert_int_equal(kv_take(&rig.kv, &seq, 1, &cell), 0);
	assert_int_equal(
		forward_run(rig.forward,
			&(struct batch_token){&seq, 1, seq.n, -1, true, cell, false, false}, 1),
		-EIO);
	assert_int_equal(late.ends, 1);
	kv_commit(&rig.kv, &seq, NULL, 0, &cell, 1);
	kv_seq_exit(&rig.kv, &seq);
	rig_close(&rig);
}

/* The same engine, but windowed layers are kept like the others. */
static void keep_windows_like_others(struct rig *rig)
{
	struct error err;
	struct kv_layout layout = rig->kv.layout;
	layout.windows = (struct kv_windows_layout){0};
	forward_destroy(&rig->forward);
	kv_exit(&rig->kv);
	free(rig->memory);
	rig->memory = NULL;
	rig_kv(rig, &layout, true);
	assert_int_equal(forward_create(rig->model, rig->backend, &rig->kv, &rig->experts.source,
				 &rig_limits(RIG_CONTEXT), &rig->forward, &err),
		0);
}

/* Cells that have slid out of every window are used again, and nobody misses them. */
static void windows_of_their_own_change_no_bit(void **state)
{
	(void)state;
	enum { LONG = 300 };
	int32_t ids[LONG];
	float *logits[2];
	for (int i = 0; i < 2; i++) {
		struct rig rig;
		struct kv_seq seq;
		rig_open(&rig, "tests/data/golden/models/gpt-oss.f32.gguf", NULL, 2, KV_F16);
		assert_int_equal(rig.kv.layout.windows.n_layers, rig.model->config.n_layers / 2);
		assert_true(rig.kv.layout.windows.n_cells < RIG_PAGES * KV_PAGE_CELLS);
		if (i == 1)
			keep_windows_like_others(&rig);
		rig_ids(9, rig.n_vocab, ids, LONG);
		rig_seq(&rig, &seq);
		logits[i] = malloc((size_t)LONG * rig.n_vocab * sizeof(float));
		assert_non_null(logits[i]);
		rig_chain(&rig, &seq, ids, LONG, 23, logits[i]);
		if (i == 0)
			assert_int_equal(seq.n - seq.window_first, rig.kv.layout.windows.kept);
		else
			same(&rig, logits[1], logits[0], LONG);
		kv_seq_exit(&rig.kv, &seq);
		rig_close(&rig);
	}
	free(logits[0]);
	free(logits[1]);
}

int main(void)
{
	static const struct CMUnitTest others[] = {
		cmocka_unit_test(windows_of_their_own_change_no_bit),
		cmocka_unit_test(an_accepted_branch_becomes_the_sequence),
		cmocka_unit_test(contradictory_batches_are_refused),
		cmocka_unit_test(hooks_see_each_layer_once_with_ordered_experts),
		cmocka_unit_test(the_order_in_which_experts_arrive_changes_no_bit),
	};
	struct CMUnitTest tests[MODELS_TRIED + sizeof(others) / sizeof(*others)];
	for (size_t m = 0; m < MODELS_TRIED; m++)
		tests[m] = (struct CMUnitTest){.name = models[m],
			.test_func = no_way_through_a_pass_changes_a_bit,
			.initial_state = (void *)(uintptr_t)&models[m]};
	memcpy(&tests[MODELS_TRIED], others, sizeof(others));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
