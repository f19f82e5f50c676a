/* Passes that get rows for a graph of the GPU's back end, emulated: the CPU's bits, for any number of rows
 * that verify drafts, as chains and branches of one session and of several. */
#include "tests/model/rig.h"

#include "kernels/gpu/backend.h"
#include "shared/model/arch/place.h"

#define GOLDEN "tests/data/golden/models/"

enum { SEQS = 3, PROMPT = 20 };

static const struct sampler_params greedy = {.temperature = 0, .top_p = 1, .repeat_penalty = 1};

struct side {
	struct rig rig;
	struct kv_seq seqs[SEQS];
};

static void open_side(struct side *s, const char *path, bool simt)
{
	struct error err = {""};
	struct rig *rig = &s->rig;

	memset(s, 0, sizeof(*s));
	if (model_load(path, &rig->model, &err) < 0)
		fail_msg("%s", err.text);
	if (simt)
		assert_int_equal(backend_simt_create(&(struct backend_gpu_options){.seed = 1},
					 &rig->backend, &err),
			0);
	else
		rig_backend(rig, kernels_select("scalar", &err), 1);
	assert_int_equal(model_place(rig->model, rig->backend, &err), 0);
	struct kv_layout layout = kv_layout_of(rig->model, KV_Q16_0, RIG_PAGES);
	layout.windows = kv_windows_of(rig->model, SEQS, RIG_BATCH, RIG_PAGES * KV_PAGE_CELLS);
	rig_kv(rig, &layout, true);
	assert_int_equal(experts_mapped_init(&rig->experts, rig->model, rig->backend, &err), 0);
	const struct forward_limits limits = {.n_batch = RIG_BATCH,
		.n_picks = RIG_BATCH,
		.n_drafts = RIG_BATCH,
		.n_context = RIG_CONTEXT};
	if (forward_create(rig->model, rig->backend, &rig->kv, &rig->experts.source, &limits,
		    &rig->forward, &err) < 0)
		fail_msg("%s", err.text);
	for (uint32_t i = 0; i < SEQS; i++)
		rig_seq(rig, &s->seqs[i]);
}

static void close_side(struct side *s)
{
	for (uint32_t i = 0; i < SEQS; i++)
		kv_seq_exit(&s->rig.kv, &s->seqs[i]);
	forward_destroy(&s->rig.forward);
	kv_exit(&s->rig.kv);
	free(s->rig.memory);
	experts_mapped_exit(&s->rig.experts);
	model_forget(s->rig.model, s->rig.backend);
	s->rig.backend->ops->destroy(s->rig.backend);
	model_free(&s->rig.model);
}

/* A pass of n tokens, of which the sequences have parts: a token that is committed then, and drafts behind
 * it. Each is picked behind. Returns how many rows were added. */
static uint32_t verify(struct side *s, uint32_t n, uint32_t n_seqs, struct pick_result *out)
{
	struct batch_token batch[RIG_BATCH];
	struct pick_row picks[RIG_BATCH];
	int32_t history[RIG_BATCH];
	uint32_t cells[RIG_BATCH], at = 0;

	for (uint32_t q = 0; q < n_seqs; q++) {
		uint32_t of = n / n_seqs + (q < n % n_seqs), first = at;

		assert_int_equal(kv_take(&s->rig.kv, &s->seqs[q], of, cells + at), 0);
		for (uint32_t i = 0; i < of; i++, at++) {
			/* Every third draft is a branch. */
			int32_t parent = i == 0 ? -1 : (int32_t)(at - 1 - (i % 3 == 2));

			batch[at] = (struct batch_token){.seq = &s->seqs[q],
				.token = (int32_t)(3 + (7 * at + n) % 40),
				.position = parent < 0 ? s->seqs[q].n : batch[parent].position + 1,
				.parent = parent,
				.cell = cells[at],
				.draft = i > 0};
			history[at] = batch[at].token;
			picks[at] = (struct pick_row){.params = &greedy,
				.history = history,
				.n_history = 1,
				.n_prompt = 1,
				.parent = -1,
				.source = at,
				.position = batch[at].position + 1,
				.want_hash = true};
		}
		assert_true(at > first);
	}
	assert_int_equal(forward_run_picks(s->rig.forward, batch, n, picks, n, out), 0);
	for (uint32_t q = 0, first = 0; q < n_seqs; q++) {
		uint32_t of = n / n_seqs + (q < n % n_seqs);

		kv_commit(&s->rig.kv, &s->seqs[q], cells + first, 1, cells + first + 1, of - 1);
		first += of;
	}
	return forward_stats(s->rig.forward)->padding;
}

static uint32_t rows_for(uint32_t n)
{
	return n <= 8 ? n : n <= 16 ? 16 : n <= 32 ? 32 : 64;
}

static void check_model(const char *path)
{
	/* Those of all sequences are one graph. */
	static const uint32_t counts[] = {9, 15, 14, 17, 12, 33};
	static struct side cpu, gpu;
	int32_t ids[PROMPT];

	for (int32_t i = 0; i < PROMPT; i++)
		ids[i] = 3 + 5 * i % 41;
	open_side(&cpu, path, false);
	open_side(&gpu, path, true);
	for (uint32_t q = 0; q < SEQS; q++) {
		rig_chain(&cpu.rig, &cpu.seqs[q], ids, PROMPT - q, PROMPT, NULL);
		rig_chain(&gpu.rig, &gpu.seqs[q], ids, PROMPT - q, PROMPT, NULL);
		assert_int_equal(forward_stats(gpu.rig.forward)->padding, 0);
	}
	for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
		struct pick_result expected[RIG_BATCH], got[RIG_BATCH];
		uint32_t n = counts[c], n_seqs = c % 2 == 0 ? SEQS : 1;

		assert_int_equal(verify(&cpu, n, n_seqs, expected), 0);
		assert_int_equal(verify(&gpu, n, n_seqs, got), rows_for(n) - n);
		for (uint32_t i = 0; i < n; i++) {
			assert_int_equal(got[i].token, expected[i].token);
			assert_int_equal(got[i].hash, expected[i].hash);
		}
		assert_int_equal(forward_stats(gpu.rig.forward)->unique_experts,
			forward_stats(cpu.rig.forward)->unique_experts);
	}
	close_side(&cpu);
	close_side(&gpu);
}

static void a_dense_model_gives_the_cpus_bits(void **state)
{
	(void)state;
	check_model(GOLDEN "llama-dense.f32.gguf");
}

static void a_model_with_experts_gives_the_cpus_bits(void **state)
{
	(void)state;
	check_model(GOLDEN "qwen3moe.f32.gguf");
}

/* Windows of their own, sinks and biases; and latent attention. */
static void other_attention_gives_the_cpus_bits(void **state)
{
	(void)state;
	check_model(GOLDEN "gpt-oss.f32.gguf");
	check_model(GOLDEN "deepseek2-lite.f32.gguf");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_dense_model_gives_the_cpus_bits),
		cmocka_unit_test(a_model_with_experts_gives_the_cpus_bits),
		cmocka_unit_test(other_attention_gives_the_cpus_bits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
