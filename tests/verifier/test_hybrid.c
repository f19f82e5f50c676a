/* Experts that the CPU computes beside the GPU's back end, emulated: the CPU's bits, in passes of any size
 * and with expert budgets. */
#include "tests/model/rig.h"

#include "kernels/gpu/backend.h"
#include "shared/model/arch/place.h"

#define GOLDEN "tests/data/golden/models/"

enum { BATCH = 128, PICKS = 8, ORACLE = 16 };

static const struct sampler_params greedy = {.temperature = 0, .top_p = 1, .repeat_penalty = 1};

/* Gives the CPU one expert of `each`, and none where it cannot compute. The device's come first, and then
 * the CPU's, some at a time. */
struct shared_out {
	struct expert_source source;
	struct buffer on_device, in_memory;
	uint32_t each, layer, n, n_by_cpu; /* n_by_cpu: of all layers */
	uint16_t experts[LIMIT_EXPERTS];
	bool by_cpu[LIMIT_EXPERTS], given[LIMIT_EXPERTS];
};

static void begin(struct expert_source *source, uint32_t layer, const uint16_t *experts,
	const uint16_t *tokens, uint32_t n)
{
	struct shared_out *s = (struct shared_out *)source;

	(void)tokens;
	s->layer = layer;
	s->n = n;
	source->n_by_cpu = 0;
	for (uint32_t i = 0; i < n; i++) {
		s->experts[i] = experts[i];
		s->given[i] = false;
		s->by_cpu[i] = source->cpu_can && (experts[i] + layer) % s->each == 0;
		source->n_by_cpu += s->by_cpu[i];
	}
	s->n_by_cpu += source->n_by_cpu;
}

static uint32_t give(struct shared_out *s, bool by_cpu, uint32_t most, struct expert_view *views)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->n && n < most; i++) {
		if (s->given[i] || s->by_cpu[i] != by_cpu)
			continue;
		s->given[i] = true;
		views[n] = (struct expert_view){.index = i, .by_cpu = by_cpu};
		experts_file_view(s->source.model, by_cpu ? &s->in_memory : &s->on_device, s->layer,
			s->experts[i], &views[n++]);
	}
	return n;
}

static int ready(struct expert_source *source, struct expert_view *views)
{
	struct shared_out *s = (struct shared_out *)source;
	uint32_t n = give(s, false, UINT32_MAX, views);

	return (int)(n > 0 ? n : give(s, true, 2, views));
}

static void used(struct expert_source *source, struct queue *q, ticket t)
{
	(void)source;
	(void)q;
	(void)t;
}

static void end(struct expert_source *source)
{
	(void)source;
}

static const struct expert_source_ops shared_out_ops = {
	.name = "shared out", .begin = begin, .ready = ready, .used = used, .end = end};

struct side {
	struct rig rig;
	struct kv_seq seq;
	struct backend *host; /* NULL: the CPU computes everything */
	struct shared_out experts;
};

static void open_side(struct side *s, const char *path, bool simt)
{
	struct error err = {""};
	struct rig *rig = &s->rig;

	memset(s, 0, sizeof(*s));
	if (model_load(path, &rig->model, &err) < 0)
		fail_msg("%s", err.text);
	rig_backend(rig, kernels_select(simt ? NULL : "scalar", &err), simt ? 2 : 1);
	if (simt) {
		s->host = rig->backend;
		assert_int_equal(backend_simt_create(&(struct backend_gpu_options){.seed = 1},
					 &rig->backend, &err),
			0);
	}
	assert_int_equal(model_place(rig->model, rig->backend, &err), 0);
	struct kv_layout layout = kv_layout_of(rig->model, KV_Q16_0, RIG_PAGES);
	layout.windows = kv_windows_of(rig->model, 1, BATCH, RIG_PAGES * KV_PAGE_CELLS);
	rig_kv(rig, &layout, true);
	struct expert_source *source = &rig->experts.source;
	if (simt) {
		source = &s->experts.source;
		*source = (struct expert_source){
			.ops = &shared_out_ops, .model = rig->model, .cpu_wanted = true};
		assert_int_equal(
			experts_file(rig->model, rig->backend, &s->experts.on_device, &err), 0);
		assert_int_equal(experts_file(rig->model, s->host, &s->experts.in_memory, &err), 0);
	} else {
		assert_int_equal(
			experts_mapped_init(&rig->experts, rig->model, rig->backend, &err), 0);
	}
	const struct forward_limits limits = {.n_batch = BATCH,
		.n_picks = PICKS,
		.n_context = RIG_CONTEXT,
		.n_budgets = 2,
		.n_oracle = ORACLE};
	if (forward_create(
		    rig->model, rig->backend, &rig->kv, source, &limits, &rig->forward, &err) < 0)
		fail_msg("%s", err.text);
	if (simt)
		assert_int_equal(forward_use_host(rig->forward, s->host, &err), 0);
	rig_seq(rig, &s->seq);
}

static void close_side(struct side *s)
{
	kv_seq_exit(&s->rig.kv, &s->seq);
	forward_destroy(&s->rig.forward);
	kv_exit(&s->rig.kv);
	free(s->rig.memory);
	model_forget(s->rig.model, s->rig.backend);
	if (s->host) {
		s->rig.backend->ops->free(&s->experts.on_device);
		s->host->ops->free(&s->experts.in_memory);
		s->host->ops->destroy(s->host);
	} else {
		experts_mapped_exit(&s->rig.experts);
	}
	s->rig.backend->ops->destroy(s->rig.backend);
	model_free(&s->rig.model);
}

/* A pass of n tokens, whose last ones are picked behind. Nothing stays of it. */
static void run(struct side *s, uint32_t n, const struct forward_budget *budget,
	struct pick_result out[PICKS])
{
	struct batch_token batch[BATCH];
	struct pick_row picks[PICKS];
	uint32_t cells[BATCH], n_picks = n < PICKS ? n : PICKS;
	int32_t history[BATCH];

	assert_int_equal(kv_take(&s->rig.kv, &s->seq, n, cells), 0);
	for (uint32_t i = 0; i < n; i++) {
		history[i] = (int32_t)(3 + 7 * i % 251);
		batch[i] = (struct batch_token){.seq = &s->seq,
			.token = history[i],
			.position = i,
			.parent = (int32_t)i - 1,
			.cell = cells[i]};
	}
	for (uint32_t i = 0; i < n_picks; i++) {
		uint32_t t = n - n_picks + i;

		picks[i] = (struct pick_row){.params = &greedy,
			.history = history,
			.n_history = t + 1,
			.n_prompt = t + 1,
			.parent = -1,
			.source = t,
			.position = t + 1,
			.want_hash = true};
	}
	if (budget)
		assert_int_equal(forward_set_budgets(s->rig.forward, budget, 1), 0);
	assert_int_equal(forward_run_picks(s->rig.forward, batch, n, picks, n_picks, out), 0);
	kv_commit(&s->rig.kv, &s->seq, NULL, 0, cells, n);
}

/* The CPU computes one expert of `each`. */
static void compare(struct side *cpu, struct side *both, uint32_t n, uint32_t each,
	const struct forward_budget *budget)
{
	struct pick_result expected[PICKS], got[PICKS];
	uint32_t n_picks = n < PICKS ? n : PICKS;

	run(cpu, n, budget, expected);
	both->experts.each = each;
	both->experts.n_by_cpu = 0;
	run(both, n, budget, got);
	assert_true(both->experts.n_by_cpu > 0);
	for (uint32_t i = 0; i < n_picks; i++) {
		assert_int_equal(got[i].token, expected[i].token);
		assert_int_equal(got[i].hash, expected[i].hash);
	}
}

/* Few tokens, and as many as only a chunk of a prompt has. */
static void check_model(const char *path)
{
	static struct side cpu, both;

	open_side(&cpu, path, false);
	open_side(&both, path, true);
	compare(&cpu, &both, 1, 1, NULL);
	compare(&cpu, &both, 12, 3, NULL);
	compare(&cpu, &both, 70, 3, NULL);
	const struct expert_costs *costs = &both.experts.source.costs;
	assert_true(costs->cpu_expert_ns > 0 && costs->cpu_token_ns > 0);
	assert_true(costs->rows_ns > 0 && costs->row_ns > 0);
	close_side(&cpu);
	close_side(&both);
}

static void plain_weights_give_the_cpus_bits(void **state)
{
	(void)state;
	check_model(GOLDEN "qwen3moe.f32.gguf");
}

static void biases_give_the_cpus_bits(void **state)
{
	(void)state;
	check_model(GOLDEN "gpt-oss.f32.gguf");
}

static void quantised_weights_give_the_cpus_bits(void **state)
{
	(void)state;
	check_model("models/outrider-demo-moe-q4_0.gguf");
}

/* With a shared expert. What the oracle ranks by is the device's. */
static void budgets_give_the_cpus_bits(void **state)
{
	static struct side cpu, both;
	uint16_t experts[LIMIT_LAYERS];

	(void)state;
	for (uint32_t l = 0; l < LIMIT_LAYERS; l++)
		experts[l] = 2;
	open_side(&cpu, GOLDEN "qwen2moe.f32.gguf", false);
	open_side(&both, GOLDEN "qwen2moe.f32.gguf", true);
	for (int way = 0; way < 4; way++) {
		const struct forward_budget budget = {.first = 3,
			.n = ORACLE,
			.experts = experts,
			.ranking = way < 2 ? BUDGET_ROUTER : BUDGET_ORACLE,
			.coverage = way % 2 ? BUDGET_TRUNCATION : BUDGET_SUBSTITUTION};

		compare(&cpu, &both, 3 + ORACLE, 1, &budget);
	}
	close_side(&cpu);
	close_side(&both);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(plain_weights_give_the_cpus_bits),
		cmocka_unit_test(biases_give_the_cpus_bits),
		cmocka_unit_test(quantised_weights_give_the_cpus_bits),
		cmocka_unit_test(budgets_give_the_cpus_bits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
