/*
 * Expert budgets: the step by itself, on matrices whose sums are exact, and whole passes over a tree on tiny models, both
 * against another implementation (tests/data/golden/README.md). OUTRIDER_BUDGET names a folder with other such data.
 */
#include "kernels/cpu/simd.h"
#include "tests/model/golden.h"

#define NODES 32
#define LISTS 16

static const char *const rankings[] = {"router", "static", "oracle"};
static const char *const coverages[] = {"substitution", "truncation"};

static uint32_t index_of(const char *name, const char *const *names, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (strcmp(names[i], name) == 0)
			return i;
	fail_msg("\"%s\" is unknown", name);
	return 0;
}

static json_t *get(const json_t *from, const char *key)
{
	json_t *value = json_object_get(from, key);
	if (!value)
		fail_msg("there is no \"%s\"", key);
	return value;
}

static json_t *load(const char *name)
{
	const char *folder = getenv("OUTRIDER_BUDGET");
	char path[512];
	snprintf(path, sizeof(path), "%s/%s.json", folder ? folder : "tests/data/golden/budget",
		name);
	return load_json(path);
}

/* ---- The step. ---- */

#define E 16
#define K 4
#define ROWS 8
#define WIDTH 4

struct unit {
	float scores[ROWS][E], weights[ROWS][K], outputs[ROWS][E][WIDTH], rest[ROWS][WIDTH],
		y[ROWS * K][WIDTH], bias[E];
	uint16_t chosen[ROWS][K], list[E];
	uint32_t affected[ROWS], pairs[ROWS * K], n_uses;
	struct expert_use order[E];
	uint64_t uses[E];
};

static void read_unit(struct unit *u, const json_t *c)
{
	size_t t, e, d;
	json_t *row, *value, *one;
	memset(u, 0, sizeof(*u));
	json_array_foreach(get(c, "gates"), t, row) json_array_foreach(row, e, value)
		u->scores[t][e] = (float)json_number_value(value);
	json_array_foreach(get(c, "bias"), e, value) u->bias[e] = (float)json_number_value(value);
	json_array_foreach(get(c, "expert_outputs"), t, row) json_array_foreach(row, e, value)
		json_array_foreach(value, d, one)
			u->outputs[t][e][d] = (float)json_number_value(one);
	json_array_foreach(get(c, "natural"), t, row) json_array_foreach(row, e, value)
	{
		u->chosen[t][e] = (uint16_t)json_integer_value(value);
		u->weights[t][e] = u->scores[t][u->chosen[t][e]];
	}
	json_array_foreach(json_object_get(c, "counts"), e, value) u->uses[e] =
		(uint64_t)json_integer_value(value);
	memset(u->y, 0xFF, sizeof(u->y));
}

/* Renormalising is the router's work for truncation: the weights come from all that were chosen. */
static void normalise(struct unit *u, uint32_t rows, uint32_t k)
{
	for (uint32_t t = 0; t < rows; t++) {
		float sum = 0;
		for (uint32_t j = 0; j < k; j++)
			sum += u->weights[t][j];
		for (uint32_t j = 0; j < k; j++)
			u->weights[t][j] /= sum;
	}
}

static struct place place_in(const struct unit *u, const struct buffer *buffer, const void *at)
{
	return (struct place){buffer, (size_t)((const char *)at - (const char *)u)};
}

#define ROWS_OF(member, n_rows)                                                                   \
	(struct rows)                                                                             \
	{                                                                                         \
		&buffer, (size_t)((const char *)(member) - (const char *)u), sizeof((member)[0]), \
			(n_rows)                                                                  \
	}

static void run_unit(
	struct unit *u, const json_t *c, uint32_t ranking, uint32_t coverage, bool norm)
{
	const struct backend_cpu_options options = {
		.kernels = kernels_select(NULL, NULL), .threads = 2};
	const struct queue_limits limits = {.n_experts = E};
	struct backend *backend;
	struct queue *q;
	struct buffer buffer;
	struct error err;
	uint32_t rows = (uint32_t)json_array_size(get(c, "gates"));
	uint32_t n = (uint32_t)json_integer_value(get(c, "n_expert"));
	assert_int_equal(backend_cpu_create(&options, &backend, &err), 0);
	assert_int_equal(backend->ops->queue(backend, &limits, &q, &err), 0);
	assert_int_equal(backend->ops->wrap(backend, u, sizeof(*u), &buffer, &err), 0);
	/* Rows of results lie closer together than the experts there is room for here. */
	for (uint32_t t = 0; t < rows; t++)
		memmove((float *)u->outputs + (size_t)t * n * WIDTH, u->outputs[t],
			n * sizeof(u->outputs[0][0]));
	struct budget_group group = {
		.n = rows,
		.experts = (uint32_t)json_integer_value(get(c, "budget")),
		.ranking = (enum budget_ranking)ranking,
		.coverage = (enum budget_coverage)coverage,
		.uses = u->uses,
		.outputs = ROWS_OF(u->outputs[0], rows * n),
		.rest = ROWS_OF(u->rest, rows),
		.list = place_in(u, &buffer, u->list),
	};
	const struct step_budget step = {
		.route = {.rule = {.gating = GATING_SIGMOID,
				  .norm = norm,
				  .scale = 1,
				  .n_groups = 1,
				  .n_groups_used = 1},
			.n_experts = n,
			.n_used = (uint32_t)json_integer_value(get(c, "top_k")),
			.selection_bias = u->bias,
			.scores = ROWS_OF(u->scores, rows),
			.chosen = ROWS_OF(u->chosen, rows),
			.weights = ROWS_OF(u->weights, rows),
			.order = {place_in(u, &buffer, u->pairs), place_in(u, &buffer, u->order),
				place_in(u, &buffer, &u->n_uses)}},
		.of = &group,
		.n = 1,
		.width = WIDTH,
		.affected = ROWS_OF(u->affected, rows),
		.y = ROWS_OF(u->y, rows * K),
	};
	q->ops->budget(q, &step);
	q->ops->queue_free(q);
	backend->ops->destroy(backend);
}

static bool in_list(const json_t *list, uint32_t e)
{
	size_t i;
	json_t *value;
	json_array_foreach(
		list, i, value) if (json_integer_value(value) == (json_int_t)e) return true;
	return false;
}

/* wanted: [expert, weight] per row. Places without an expert have zeros where its result would be. */
static void check_rows(const struct unit *u, const json_t *wanted, uint32_t k)
{
	static const float zeros[WIDTH];
	size_t t, j;
	json_t *row, *pair;
	uint32_t n_pairs = 0;
	json_array_foreach(wanted, t, row)
	{
		uint32_t used = 0;
		json_array_foreach(row, j, pair)
		{
			uint32_t at = 0;
			while (at < k &&
				(u->chosen[t][at] != (uint16_t)json_integer_value(
							     json_array_get(pair, 0)) ||
					memcmp(u->y[t * k + at], zeros, sizeof(zeros)) == 0))
				at++;
			assert_true(at < k);
			double difference = (double)u->weights[t][at] -
					    json_number_value(json_array_get(pair, 1));
			assert_true(fabs(difference) < 1e-6);
		}
		for (j = 0; j < k; j++)
			used += memcmp(u->y[t * k + j], zeros, sizeof(zeros)) != 0;
		assert_int_equal(used, json_array_size(row));
		n_pairs += used;
	}
	uint32_t ordered = 0;
	for (uint32_t i = 0; i < u->n_uses; i++)
		ordered += u->order[i].n;
	assert_int_equal(ordered, n_pairs);
}

static void check_unit(const json_t *c, uint32_t ranking, uint32_t coverage, bool norm)
{
	static struct unit u;
	size_t i;
	json_t *value;
	uint32_t rows = (uint32_t)json_array_size(get(c, "gates"));
	uint32_t k = (uint32_t)json_integer_value(get(c, "top_k"));
	const json_t *list = json_object_get(get(c, "shortlist"), rankings[ranking]);
	const json_t *of =
		json_object_get(get(c, norm ? "renormalised" : "raw"), rankings[ranking]);
	if (!list)
		return;
	read_unit(&u, c);
	if (norm)
		normalise(&u, rows, k);
	run_unit(&u, c, ranking, coverage, norm);
	json_array_foreach(list, i, value) assert_int_equal(u.list[i], json_integer_value(value));
	check_rows(&u, get(of, coverages[coverage]), k);
	for (uint32_t t = 0; t < rows; t++)
		assert_int_equal(u.affected[t], in_list(get(of, "affected"), t));
}

static void the_step_ranks_and_covers_as_the_formulas_say(void **state)
{
	size_t i, n = 0;
	json_t *c, *units = load("units");
	(void)state;
	json_array_foreach(get(units, "cases"), i,
		c) for (uint32_t way = 0; way < BUDGET_RANKINGS * BUDGET_COVERAGES * 2; way++, n++)
		check_unit(c, way / 4, way % 2, way % 4 / 2);
	assert_true(n >= 9 * 12);
	json_decref(units);
}

/* ---- Passes. ---- */

struct lists {
	struct forward *forward;
	uint32_t n_experts;
	uint16_t list[LISTS][LIMIT_EXPERTS / 8];
	bool wanted;
};

static struct lists lists;

static void record_lists(void *arg, uint32_t layer, uint32_t n_tokens, const uint16_t *experts,
	const float *weights, const struct rows *hidden)
{
	record(arg, layer, n_tokens, experts, weights, hidden);
	if (experts && lists.wanted)
		memcpy(lists.list[layer], forward_list(lists.forward, 0),
			lists.n_experts * sizeof(uint16_t));
}

/* The same limit in each layer; until the next call. */
static const uint16_t *in_each_layer(uint32_t experts)
{
	static uint16_t limits[LIMIT_LAYERS];
	for (uint32_t l = 0; l < LIMIT_LAYERS; l++)
		limits[l] = (uint16_t)experts;
	return limits;
}

struct tree {
	int32_t tokens[NODES], parents[NODES];
	uint32_t n;
	uint32_t cells[NODES];
};

static void read_tree(const json_t *golden, struct tree *tree)
{
	const json_t *from = get(golden, "tree");
	tree->n = read_ids(get(from, "tokens"), tree->tokens);
	assert_int_equal(read_ids(get(from, "parents"), tree->parents), tree->n);
	assert_true(tree->n <= NODES);
}

static void begin(struct rig *rig, struct kv_seq *seq, const json_t *golden)
{
	int32_t ids[RIG_CONTEXT];
	uint32_t n = read_ids(get(golden, "prompt"), ids);
	rig_seq(rig, seq);
	rig_chain(rig, seq, ids, n, RIG_BATCH, NULL);
}

/* Runs the tree behind the sequence's tokens. */
static void run_tree(
	struct rig *rig, struct kv_seq *seq, struct tree *tree, const struct forward_budget *budget)
{
	struct batch_token batch[NODES];
	assert_int_equal(kv_take(&rig->kv, seq, tree->n, tree->cells), 0);
	for (uint32_t i = 0; i < tree->n; i++) {
		int32_t parent = tree->parents[i];
		batch[i] = (struct batch_token){.seq = seq,
			.token = tree->tokens[i],
			.position = parent < 0 ? seq->n : batch[parent].position + 1,
			.parent = parent,
			.logits = true,
			.cell = tree->cells[i]};
	}
	routes.k = rig->model->config.n_experts_used;
	routes.first = 0;
	lists.forward = rig->forward;
	lists.n_experts = rig->model->config.n_experts;
	lists.wanted = budget != NULL;
	forward_set_hooks(
		rig->forward, &(struct forward_hooks){.layer = record_lists, .arg = &routes});
	if (budget)
		assert_int_equal(forward_set_budgets(rig->forward, budget, 1), 0);
	assert_int_equal(forward_run(rig->forward, batch, tree->n), 0);
	forward_set_hooks(rig->forward, NULL);
}

static void drop_tree(struct rig *rig, struct kv_seq *seq, struct tree *tree)
{
	kv_commit(&rig->kv, seq, NULL, 0, tree->cells, tree->n);
	kv_seq_exit(&rig->kv, seq);
}

static void check_top(const json_t *top, const float *logits, double limit)
{
	size_t i;
	json_t *pair;
	json_array_foreach(top, i, pair)
	{
		double got = (double)logits[json_integer_value(json_array_get(pair, 0))];
		assert_true(fabs(got - json_number_value(json_array_get(pair, 1))) <= limit);
	}
}

/* All logits, or the greatest, as the data has them. */
static void check_logits(const struct rig *rig, const json_t *run, uint32_t n)
{
	const json_t *all = json_object_get(run, "logits");
	for (uint32_t i = 0; i < n; i++) {
		const float *row = forward_logits(rig->forward, i);
		assert_int_equal(best(row, rig->n_vocab),
			json_integer_value(json_array_get(get(run, "argmax"), i)));
		if (!all) {
			check_top(json_array_get(get(run, "top"), i), row,
				2e-4 * json_number_value(get(run, "rms")));
			continue;
		}
		struct difference d = compare(row, json_array_get(all, i), rig->n_vocab);
		assert_true(d.max <= 2e-4 * d.reference_rms);
	}
}

static void check_choice(const json_t *experts, const json_t *weights, uint32_t layer, uint32_t t)
{
	size_t i;
	json_t *expert;
	uint32_t used = 0;
	json_array_foreach(experts, i, expert)
	{
		uint32_t j = 0;
		while (j < routes.k &&
			(routes.experts[layer][t][j] != (uint16_t)json_integer_value(expert) ||
				routes.weights[layer][t][j] == 0))
			j++;
		assert_true(j < routes.k);
		assert_true(fabs((double)routes.weights[layer][t][j] -
				    json_number_value(json_array_get(weights, i))) <= 1e-5);
	}
	for (uint32_t j = 0; j < routes.k; j++)
		used += routes.weights[layer][t][j] != 0;
	assert_int_equal(used, json_array_size(experts));
}

static void check_layers(const struct rig *rig, const json_t *run, uint32_t n)
{
	size_t i, j;
	json_t *layer, *value;
	uint32_t affected[NODES] = {0};
	json_array_foreach(get(run, "layers"), i, layer)
	{
		uint32_t l = (uint32_t)json_integer_value(get(layer, "layer"));
		json_array_foreach(get(layer, "shortlist"), j, value)
			assert_int_equal(lists.list[l][j], json_integer_value(value));
		for (uint32_t t = 0; t < n; t++)
			check_choice(json_array_get(get(layer, "experts"), t),
				json_array_get(get(layer, "weights"), t), l, t);
		json_array_foreach(get(layer, "affected"), j, value)
			affected[json_integer_value(value)]++;
	}
	for (uint32_t t = 0; t < n; t++)
		assert_int_equal(forward_affected(rig->forward)[t], affected[t]);
}

/* Accepted tokens keep the keys and values of the limited pass. */
static void check_after(struct rig *rig, struct kv_seq *seq, struct tree *tree, const json_t *run)
{
	const json_t *after = json_object_get(run, "after");
	size_t i;
	json_t *value;
	uint32_t accepted[NODES], n = 0, rejected[NODES], n_rejected = 0;
	bool kept[NODES] = {false};
	int32_t next = (int32_t)json_integer_value(get(run, "next"));
	float *logits = malloc(rig->n_vocab * sizeof(*logits));
	json_array_foreach(get(run, "accepted"), i, value)
	{
		accepted[n++] = tree->cells[json_integer_value(value)];
		kept[json_integer_value(value)] = true;
	}
	for (uint32_t t = 0; t < tree->n; t++)
		if (!kept[t])
			rejected[n_rejected++] = tree->cells[t];
	kv_commit(&rig->kv, seq, accepted, n, rejected, n_rejected);
	rig_chain(rig, seq, &next, 1, 1, logits);
	assert_int_equal(best(logits, rig->n_vocab), json_integer_value(get(after, "kept_argmax")));
	if (json_object_get(after, "kept_top"))
		check_top(
			get(after, "kept_top"), logits, 2e-4 * json_number_value(get(run, "rms")));
	free(logits);
	kv_seq_exit(&rig->kv, seq);
}

static void check_run(struct rig *rig, const json_t *golden, const json_t *run, const float *exact)
{
	struct tree tree;
	struct kv_seq seq;
	const struct forward_budget budget = {
		.experts = in_each_layer((uint32_t)json_integer_value(get(run, "budget"))),
		.ranking =
			index_of(json_string_value(get(run, "ranking")), rankings, BUDGET_RANKINGS),
		.coverage = index_of(
			json_string_value(get(run, "policy")), coverages, BUDGET_COVERAGES),
		.n = (uint32_t)json_array_size(get(get(golden, "tree"), "tokens")),
	};
	read_tree(golden, &tree);
	begin(rig, &seq, golden);
	run_tree(rig, &seq, &tree, &budget);
	if (json_is_true(json_object_get(run, "equals_unbudgeted"))) {
		for (uint32_t i = 0; i < tree.n; i++)
			assert_memory_equal(forward_logits(rig->forward, i),
				exact + (size_t)i * rig->n_vocab, rig->n_vocab * sizeof(float));
		drop_tree(rig, &seq, &tree);
		return;
	}
	check_logits(rig, run, tree.n);
	check_layers(rig, run, tree.n);
	if (json_object_get(run, "after"))
		check_after(rig, &seq, &tree, run);
	else
		drop_tree(rig, &seq, &tree);
}

static void set_uses(struct rig *rig, const json_t *golden, uint64_t *uses)
{
	const json_t *counts = json_object_get(golden, "counts");
	size_t i, e;
	json_t *layer, *value;
	uint32_t n = rig->model->config.n_experts;
	if (!counts)
		counts = get(get(golden, "calibration"), "counts");
	memset(uses, 0, LISTS * n * sizeof(*uses));
	json_array_foreach(counts, i, layer) json_array_foreach(get(layer, "counts"), e, value)
		uses[(size_t)json_integer_value(get(layer, "layer")) * n + e] =
			(uint64_t)json_integer_value(value);
	forward_set_uses(rig->forward, uses);
}

static float *run_exactly(struct rig *rig, const json_t *golden)
{
	struct tree tree;
	struct kv_seq seq;
	read_tree(golden, &tree);
	begin(rig, &seq, golden);
	run_tree(rig, &seq, &tree, NULL);
	check_logits(rig, get(golden, "unbudgeted"), tree.n);
	float *exact = malloc((size_t)tree.n * rig->n_vocab * sizeof(*exact));
	for (uint32_t i = 0; i < tree.n; i++)
		memcpy(exact + (size_t)i * rig->n_vocab, forward_logits(rig->forward, i),
			rig->n_vocab * sizeof(*exact));
	drop_tree(rig, &seq, &tree);
	return exact;
}

static void check_model(const char *name, const char *kernels)
{
	static uint64_t uses[LISTS * LIMIT_EXPERTS];
	char path[256];
	struct rig rig;
	size_t i;
	json_t *run, *golden = load(name);
	snprintf(path, sizeof(path), "tests/data/golden/models/%s.f32.gguf", name);
	rig_open(&rig, path, kernels, 2, KV_F32);
	set_uses(&rig, golden, uses);
	float *exact = run_exactly(&rig, golden);
	json_array_foreach(get(golden, "runs"), i, run) check_run(&rig, golden, run, exact);
	assert_true(i >= 26);
	free(exact);
	json_decref(golden);
	rig_close(&rig);
}

static void passes_equal_the_golden_data_on_every_backend(void **state)
{
	static const char *const names[] = {
		"deepseek2-lite", "deepseek2-v3", "glm4moe", "mixtral", "olmoe", "qwen3moe"};
	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		for (const struct kernels *const *k = kernels_all; *k; k++)
			if ((*k)->supported())
				check_model(names[i], (*k)->name);
}

/* Rows of a sequence beside one with a budget: equal to the bit, for every rule of a router. */
static void a_budget_changes_no_row_of_another_sequence(void **state)
{
	static const char *const names[] = {
		"mixtral", "gpt-oss", "phimoe", "qwen2moe", "deepseek2-v3"};
	(void)state;
	for (size_t m = 0; m < sizeof(names) / sizeof(*names); m++) {
		char path[256];
		struct rig rig;
		struct kv_seq seqs[2];
		struct batch_token batch[16];
		uint32_t cells[2][8];
		float *alone[8];
		snprintf(path, sizeof(path), "tests/data/golden/models/%s.f32.gguf", names[m]);
		rig_open(&rig, path, NULL, 2, KV_F32);
		for (uint32_t way = 0; way < 5; way++) {
			int32_t ids[16];
			rig_ids(way + 7, 300, ids, 16);
			for (uint32_t s = 0; s < 2; s++) {
				rig_seq(&rig, &seqs[s]);
				assert_int_equal(kv_take(&rig.kv, &seqs[s], 8, cells[s]), 0);
				for (uint32_t i = 0; i < 8; i++)
					batch[s * 8 + i] = (struct batch_token){.seq = &seqs[s],
						.token = ids[s * 8 + i],
						.position = i,
						.parent = i == 0 ? -1 : (int32_t)(s * 8 + i - 1),
						.logits = true,
						.cell = cells[s][i]};
			}
			assert_int_equal(forward_run(rig.forward, batch, 16), 0);
			for (uint32_t i = 0; i < 8; i++) {
				alone[i] = malloc(rig.n_vocab * sizeof(float));
				memcpy(alone[i], forward_logits(rig.forward, i),
					rig.n_vocab * sizeof(float));
			}
			const struct forward_budget budget = {.first = 8,
				.n = 8,
				.experts = in_each_layer(way % 2 + 1),
				.ranking = way < 4 ? BUDGET_ROUTER : BUDGET_ORACLE,
				.coverage = way / 2 % 2};
			assert_int_equal(forward_set_budgets(rig.forward, &budget, 1), 0);
			assert_int_equal(forward_run(rig.forward, batch, 16), 0);
			uint32_t affected = 0;
			for (uint32_t i = 0; i < 8; i++) {
				assert_memory_equal(forward_logits(rig.forward, i), alone[i],
					rig.n_vocab * sizeof(float));
				assert_int_equal(forward_affected(rig.forward)[i], 0);
				affected += forward_affected(rig.forward)[8 + i];
				for (uint32_t v = 0; v < rig.n_vocab; v++)
					assert_true(
						isfinite(forward_logits(rig.forward, 8 + i)[v]));
				free(alone[i]);
			}
			assert_true(affected > 0);
			for (uint32_t s = 0; s < 2; s++) {
				kv_commit(&rig.kv, &seqs[s], NULL, 0, cells[s], 8);
				kv_seq_exit(&rig.kv, &seqs[s]);
			}
		}
		rig_close(&rig);
	}
}

/* A budget of some layers leaves the others alone: up to the first limited one every state is the
 * exact one, to the bit, and what each layer lists is what a budget of all layers would list from the
 * same states. */
static void each_layer_has_a_limit_of_its_own(void **state)
{
	static const char *const names[] = {"olmoe", "deepseek2-v3", "glm4moe"};
	(void)state;
	for (size_t m = 0; m < sizeof(names) / sizeof(*names); m++) {
		uint16_t limits[LIMIT_LAYERS] = {0}, last;
		struct tree tree;
		struct kv_seq seq;
		struct rig rig;
		char path[256];
		json_t *golden = load(names[m]);
		snprintf(path, sizeof(path), "tests/data/golden/models/%s.f32.gguf", names[m]);
		rig_open(&rig, path, NULL, 2, KV_F32);
		last = (uint16_t)(rig.model->config.n_layers - 1);
		float *exact = run_exactly(&rig, golden);
		size_t bytes = rig.n_vocab * sizeof(float);
		/* No limit at all, and as many experts as there are: exact. */
		for (uint32_t way = 0; way < 2; way++) {
			limits[last] = (uint16_t)(way * rig.model->config.n_experts);
			const struct forward_budget off = {
				.n = NODES, .experts = limits, .ranking = BUDGET_ROUTER};
			struct forward_budget budget = off;
			read_tree(golden, &tree);
			budget.n = tree.n;
			begin(&rig, &seq, golden);
			run_tree(&rig, &seq, &tree, &budget);
			for (uint32_t i = 0; i < tree.n; i++) {
				assert_memory_equal(forward_logits(rig.forward, i),
					exact + (size_t)i * rig.n_vocab, bytes);
				assert_int_equal(forward_affected(rig.forward)[i], 0);
			}
			drop_tree(&rig, &seq, &tree);
		}
		/* The last layer alone. */
		limits[last] = 1;
		const struct forward_budget budget = {
			.n = tree.n, .experts = limits, .coverage = BUDGET_TRUNCATION};
		begin(&rig, &seq, golden);
		run_tree(&rig, &seq, &tree, &budget);
		uint32_t affected = 0, changed = 0;
		for (uint32_t i = 0; i < tree.n; i++) {
			affected += forward_affected(rig.forward)[i];
			assert_true(forward_affected(rig.forward)[i] <= 1);
			changed += memcmp(forward_logits(rig.forward, i),
					   exact + (size_t)i * rig.n_vocab, bytes) != 0;
		}
		assert_true(affected > 0 && changed > 0);
		drop_tree(&rig, &seq, &tree);
		free(exact);
		json_decref(golden);
		rig_close(&rig);
	}
}

static void impossible_budgets_are_refused(void **state)
{
	struct rig rig;
	const uint16_t *four = in_each_layer(4);
	const struct forward_budget bad[] = {
		{0, 0, four, BUDGET_ROUTER, BUDGET_TRUNCATION},
		{0, 4, NULL, BUDGET_ROUTER, BUDGET_TRUNCATION},
		{RIG_BATCH - 2, 4, four, BUDGET_ROUTER, BUDGET_TRUNCATION},
		{0, 4, four, BUDGET_RANKINGS, BUDGET_TRUNCATION},
		{0, 4, four, BUDGET_STATIC, BUDGET_TRUNCATION}, /* no counts */
		{0, 17, four, BUDGET_ORACLE,
			BUDGET_TRUNCATION}, /* more rows than there is room for */
	};
	const struct forward_budget overlap[] = {{0, 4, four, BUDGET_ROUTER, BUDGET_TRUNCATION},
		{3, 4, four, BUDGET_ROUTER, BUDGET_TRUNCATION}};
	(void)state;
	rig_open(&rig, "tests/data/golden/models/mixtral.f32.gguf", NULL, 1, KV_F32);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_int_equal(forward_set_budgets(rig.forward, &bad[i], 1), -EINVAL);
	assert_int_equal(forward_set_budgets(rig.forward, overlap, 2), -EINVAL);
	rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_step_ranks_and_covers_as_the_formulas_say),
		cmocka_unit_test(passes_equal_the_golden_data_on_every_backend),
		cmocka_unit_test(a_budget_changes_no_row_of_another_sequence),
		cmocka_unit_test(each_layer_has_a_limit_of_its_own),
		cmocka_unit_test(impossible_budgets_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
