/* Passes whose experts the GPU's back end finds by itself say afterwards what they chose: what passes say
 * that stop in each layer. */
#include "tests/model/rig.h"

#include "kernels/gpu/backend.h"
#include "shared/model/arch/place.h"

enum { ROWS = 11, USED = 8 };

struct told {
	uint32_t n_layers, n_stops;
	struct {
		uint32_t layer, n;
		uint16_t experts[ROWS * USED];
	} of[LIMIT_LAYERS];
};

static void routed(void *arg, uint32_t layer, uint32_t n_tokens, const uint16_t *experts)
{
	struct told *told = arg;

	assert_true(n_tokens <= ROWS && told->n_layers < LIMIT_LAYERS);
	told->of[told->n_layers].layer = layer;
	told->of[told->n_layers].n = n_tokens;
	memcpy(told->of[told->n_layers++].experts, experts,
		(size_t)n_tokens * USED * sizeof(*experts));
}

static void stop(void *arg, uint32_t layer, uint32_t n_tokens, const uint16_t *experts,
	const float *weights, const struct rows *hidden)
{
	struct told *told = arg;

	(void)layer;
	(void)n_tokens;
	(void)experts;
	(void)weights;
	(void)hidden;
	told->n_stops++;
}

static void open_simt(struct rig *rig, const char *path)
{
	const struct forward_limits limits = {
		.n_batch = RIG_BATCH, .n_picks = RIG_BATCH, .n_context = RIG_CONTEXT};
	struct error err = {""};

	memset(rig, 0, sizeof(*rig));
	if (model_load(path, &rig->model, &err) < 0)
		fail_msg("%s", err.text);
	assert_true(rig->model->config.n_experts_used <= USED);
	assert_int_equal(
		backend_simt_create(&(struct backend_gpu_options){.seed = 1}, &rig->backend, &err),
		0);
	assert_int_equal(model_place(rig->model, rig->backend, &err), 0);
	struct kv_layout layout = kv_layout_of(rig->model, KV_Q16_0, RIG_PAGES);
	rig_kv(rig, &layout, true);
	assert_int_equal(experts_mapped_init(&rig->experts, rig->model, rig->backend, &err), 0);
	if (forward_create(rig->model, rig->backend, &rig->kv, &rig->experts.source, &limits,
		    &rig->forward, &err) < 0)
		fail_msg("%s", err.text);
}

static void close_simt(struct rig *rig)
{
	forward_destroy(&rig->forward);
	kv_exit(&rig->kv);
	free(rig->memory);
	experts_mapped_exit(&rig->experts);
	model_forget(rig->model, rig->backend);
	rig->backend->ops->destroy(rig->backend);
	model_free(&rig->model);
}

static const struct sampler_params greedy = {.temperature = 0, .top_p = 1, .repeat_penalty = 1};

/* A pass of n tokens, each picked behind, of which nothing stays. */
static struct told run(struct rig *rig, uint32_t n, bool stops)
{
	static struct told told;
	const struct forward_hooks hooks = {
		.layer = stops ? stop : NULL, .routed = routed, .arg = &told};
	struct batch_token batch[ROWS];
	struct pick_row picks[ROWS];
	struct pick_result results[ROWS];
	int32_t history[ROWS];
	uint32_t cells[ROWS];
	struct kv_seq seq;

	memset(&told, 0, sizeof(told));
	rig_seq(rig, &seq);
	assert_int_equal(kv_take(&rig->kv, &seq, n, cells), 0);
	for (uint32_t i = 0; i < n; i++) {
		history[i] = (int32_t)(3 + 5 * i);
		batch[i] = (struct batch_token){.seq = &seq,
			.token = history[i],
			.position = i,
			.parent = (int32_t)i - 1,
			.cell = cells[i],
			.draft = i > 0};
		picks[i] = (struct pick_row){.params = &greedy,
			.history = history,
			.n_history = 1,
			.n_prompt = 1,
			.parent = -1,
			.source = i,
			.position = i + 1};
	}
	forward_set_hooks(rig->forward, &hooks);
	uint64_t before = rig->experts.source.stats.lookups;
	assert_int_equal(forward_run_picks(rig->forward, batch, n, picks, n, results), 0);
	assert_int_equal(forward_stats(rig->forward)->whole, !stops);
	assert_int_equal(rig->experts.source.stats.lookups - before,
		forward_stats(rig->forward)->unique_experts);
	kv_commit(&rig->kv, &seq, NULL, 0, cells, n);
	kv_seq_exit(&rig->kv, &seq);
	return told;
}

static void check_model(const char *path)
{
	static const uint32_t counts[] = {1, 5, ROWS, 5};
	static struct told whole, layers;
	struct rig rig;
	uint32_t n_moe = 0;

	open_simt(&rig, path);
	uint32_t used = rig.model->config.n_experts_used;
	for (uint32_t l = 0; l < rig.model->config.n_layers; l++)
		n_moe += rig.model->layers[l].moe;
	for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
		layers = run(&rig, counts[c], true);
		whole = run(&rig, counts[c], false);
		assert_int_equal(layers.n_stops, rig.model->config.n_layers);
		assert_int_equal(whole.n_stops, 0);
		assert_int_equal(whole.n_layers, n_moe);
		assert_int_equal(layers.n_layers, n_moe);
		for (uint32_t l = 0; l < n_moe; l++) {
			assert_int_equal(whole.of[l].layer, layers.of[l].layer);
			assert_int_equal(whole.of[l].n, counts[c]);
			assert_int_equal(layers.of[l].n, counts[c]);
			assert_memory_equal(whole.of[l].experts, layers.of[l].experts,
				(size_t)counts[c] * used * sizeof(uint16_t));
		}
	}
	close_simt(&rig);
}

static void every_layer_with_experts_is_told(void **state)
{
	(void)state;
	check_model("tests/data/golden/models/qwen3moe.f32.gguf");
	/* The first layer has none. */
	check_model("tests/data/golden/models/deepseek2-lite.f32.gguf");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_layer_with_experts_is_told),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
