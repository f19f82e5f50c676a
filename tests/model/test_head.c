/*
 * Draft heads against a reference in torch that computes every row anew, without a cache
 * (tests/data/golden/heads, tolerances from the README there): the states that they read, chains of
 * drafts, and chains after some drafts were rejected, on the cache that the first chain left. Then
 * the files that must be refused.
 */
#include "tests/model/golden.h"
#include "tests/model/gguf_build.h"

#include "kernels/cpu/simd.h"
#include "shared/model/arch/head.h"

#include <glob.h>

#define FOLDER "tests/data/golden/heads"
#define STATE_MAX 1024

/* The target's states, as the head takes them: [position][head->n_state]. */
struct states {
	const struct head *head;
	const struct model *target;
	uint32_t first;
	float of[RIG_CONTEXT][STATE_MAX];
};

static void take_states(void *arg, uint32_t layer, uint32_t n_tokens, const struct rows *x)
{
	struct states *states = arg;
	const struct head *head = states->head;
	uint32_t n = states->target->config.n_embd;
	for (uint32_t tap = 0; tap < head->n_taps; tap++) {
		for (uint32_t t = 0; t < n_tokens && head->taps[tap] == layer; t++) {
			const float *from =
				(const float *)(const void *)(x->buffer->host + x->offset +
							      t * x->stride);
			memcpy(states->of[states->first + t] + tap * n, from, n * sizeof(*from));
		}
	}
}

static void run_target(struct rig *target, struct states *states, const int32_t *ids, uint32_t n)
{
	struct kv_seq seq;
	rig_seq(target, &seq);
	forward_set_hooks(
		target->forward, &(struct forward_hooks){.residual = take_states, .arg = states});
	for (states->first = 0; states->first < n; states->first += RIG_BATCH) {
		uint32_t m = n - states->first < RIG_BATCH ? n - states->first : RIG_BATCH;
		rig_chain(target, &seq, ids + states->first, m, RIG_BATCH, NULL);
	}
	kv_seq_exit(&target->kv, &seq);
}

/* Rows of the head from the target's states of positions seq->n.., with the tokens behind them.
 * The logits and the state of the last one are kept. */
struct row {
	const float *logits;
	float out[STATE_MAX];
};

static void run_rows(struct rig *rig, struct kv_seq *seq, const struct states *states,
	const int32_t *tokens, uint32_t n, struct row *last)
{
	struct forward_head_rows rows = forward_head_rows(rig->forward);
	struct batch_token batch[RIG_BATCH];
	const struct head *head = rig->model->head;
	uint32_t cells[RIG_BATCH], width = head->n_state, d = rig->model->config.n_embd;
	for (uint32_t first = 0; first < n;) {
		uint32_t m = n - first < RIG_BATCH ? n - first : RIG_BATCH;
		assert_int_equal(kv_take(&rig->kv, seq, m, cells), 0);
		for (uint32_t i = 0; i < m; i++) {
			batch[i] = (struct batch_token){seq, tokens[first + i], seq->n + i,
				(int32_t)i - 1, true, cells[i], false, false};
			memcpy(rows.taps + i * width, states->of[seq->n + i],
				width * sizeof(*rows.taps));
		}
		assert_int_equal(forward_head_fuse(rig->forward, 0, m, false), 0);
		assert_int_equal(forward_run(rig->forward, batch, m), 0);
		kv_commit(&rig->kv, seq, cells, m, NULL, 0);
		first += m;
		last->logits = forward_logits(rig->forward, m - 1);
		memcpy(last->out, rows.out + (m - 1) * d, d * sizeof(*last->out));
	}
}

/* One row behind the last one: the token that was drafted, and the head's own state. */
static void run_drafted(struct rig *rig, struct kv_seq *seq, int32_t token, struct row *row)
{
	struct forward_head_rows rows = forward_head_rows(rig->forward);
	uint32_t cell, d = rig->model->config.n_embd;
	assert_int_equal(kv_take(&rig->kv, seq, 1, &cell), 0);
	memcpy(rows.states, row->out, d * sizeof(*rows.states));
	const struct batch_token one = {seq, token, seq->n, -1, true, cell, false, false};
	assert_int_equal(forward_run(rig->forward, &one, 1), 0);
	kv_commit(&rig->kv, seq, &cell, 1, NULL, 0);
	row->logits = forward_logits(rig->forward, 0);
	memcpy(row->out, rows.out, d * sizeof(*row->out));
}

static void assert_near(const char *what, const char *prompt, size_t step, const float *got,
	const json_t *expected, uint32_t n, double limit)
{
	struct difference d = compare(got, expected, n);
	if (!(d.max <= limit * d.reference_rms))
		fail_msg("prompt %s, step %zu: %s differ by %g of an RMS of %g", prompt, step, what,
			d.max, d.reference_rms);
}

/* Compares row 0, which is there, and drafts the rest of the chain. */
static void check_chain(struct rig *rig, struct kv_seq *seq, struct row *row, const char *name,
	const json_t *chain, double limit)
{
	size_t step;
	json_t *expected;
	int32_t token = -1;
	assert_true(json_array_size(chain) >= 3);
	json_array_foreach(chain, step, expected)
	{
		if (step > 0)
			run_drafted(rig, seq, token, row);
		assert_int_equal(seq->n - 1, json_integer_value(json_object_get(expected, "pos")));
		assert_near("states", name, step, row->out, json_object_get(expected, "hidden"),
			rig->model->config.n_embd, limit);
		assert_near("logits", name, step, row->logits, json_object_get(expected, "logits"),
			rig->n_vocab, limit);
		token = head_token(rig->model->head, best(row->logits, rig->n_vocab));
		assert_int_equal(token, json_integer_value(json_object_get(expected, "token_out")));
	}
}

/* Some drafts were accepted: drops the rows of drafted states, and reads those tokens again, with
 * the target's states. */
static void check_after_accept(struct rig *target, struct rig *rig, struct kv_seq *seq,
	struct states *states, const json_t *after, uint32_t n, const char *name, double limit)
{
	int32_t ids[RIG_CONTEXT + 1];
	struct row row;
	uint32_t n_ids = read_ids(json_object_get(after, "ids"), ids);
	ids[n_ids] = (int32_t)json_integer_value(json_object_get(after, "bonus"));
	run_target(target, states, ids, n_ids);
	assert_true(seq->n > n);
	kv_truncate(&rig->kv, seq, n);
	assert_int_equal(seq->n, n);
	assert_int_equal(n_ids - n, 1 + json_integer_value(json_object_get(after, "accepted")));
	run_rows(rig, seq, states, ids + n + 1, n_ids - n, &row);
	check_chain(rig, seq, &row, name, json_object_get(after, "chain"), limit);
}

/* Complete data have the states of several positions, the last one behind the others. */
static const json_t *last_of(const json_t *object, const char *key, const char *value)
{
	const json_t *at = json_object_get(object, key);
	if (json_is_array(at))
		at = json_array_get(at, json_array_size(at) - 1);
	return json_object_get(at, value);
}

static void check_taps(const struct states *states, const json_t *prompt, uint32_t last,
	const char *name, double limit)
{
	size_t tap;
	json_t *h;
	uint32_t n = states->target->config.n_embd;
	json_array_foreach(last_of(prompt, "taps", "h"), tap, h)
		assert_near("taps", name, tap, states->of[last] + tap * n, h, n, limit);
}

static void check_prompt(struct rig *target, struct rig *rig, const json_t *prompt, bool delta_nets)
{
	static struct states states;
	int32_t ids[RIG_CONTEXT + 1];
	const char *name = json_string_value(json_object_get(prompt, "name"));
	uint32_t n = read_ids(json_object_get(prompt, "ids"), ids);
	const json_t *after;
	struct kv_seq seq;
	struct row row;
	size_t i;
	double limit = delta_nets ? 1e-3 : 5e-4;
	ids[n] = (int32_t)json_integer_value(json_object_get(prompt, "next"));
	states.head = rig->model->head;
	states.target = target->model;
	assert_true(states.head->n_state <= STATE_MAX);
	run_target(target, &states, ids, n);
	check_taps(&states, prompt, n - 1, name, delta_nets ? 1e-3 : 2e-4);
	rig_seq(rig, &seq);
	run_rows(rig, &seq, &states, ids + 1, n, &row);
	bool eagle3 = states.head->kind == HEAD_EAGLE3;
	assert_near("states that the head reads", name, 0,
		forward_head_rows(rig->forward).states +
			(n - 1) % RIG_BATCH * rig->model->config.n_embd,
		last_of(prompt, eagle3 ? "fused" : "hidden", eagle3 ? "g" : "h"),
		rig->model->config.n_embd, delta_nets ? 1e-3 : 2e-4);
	check_chain(rig, &seq, &row, name, json_object_get(prompt, "chain"), limit);
	json_array_foreach(json_object_get(prompt, "after_accept"), i, after)
		check_after_accept(target, rig, &seq, &states, after, n, name, limit);
	kv_seq_exit(&rig->kv, &seq);
}

static struct model *load_head(const char *folder, const char *name, const struct model *target)
{
	char path[512];
	struct error err = {""};
	struct model *head;
	snprintf(path, sizeof(path), "%s/%s.f32.gguf", folder, name);
	int rc = strncmp(name, "eagle3", 6) == 0 ? head_load_eagle3(path, target, &head, &err)
						 : head_load_nextn(path, 0, &head, &err);
	if (rc < 0)
		fail_msg("%s", err.text);
	return head;
}

static void check_head(const char *folder, const char *name, const char *kernels)
{
	char path[512];
	struct rig target, rig;
	json_t *prompt;
	size_t i;
	snprintf(path, sizeof(path), "%s/%s.json", folder, name);
	json_t *golden = load_json(path);
	head_target(folder, golden, path, sizeof(path));
	rig_open(&target, path, kernels, 2, KV_F32);
	rig_open_head(&rig, load_head(folder, name, target.model), kernels);
	assert_true(json_array_size(json_object_get(golden, "prompts")) >= 4);
	json_array_foreach(json_object_get(golden, "prompts"), i, prompt)
		check_prompt(&target, &rig, prompt, target.model->config.delta.n_layers > 0);
	rig_close(&rig);
	rig_close(&target);
	json_decref(golden);
}

static const char *const heads[] = {"eagle3-llama-own", "eagle3-llama-shared",
	"eagle3-qwen3moe-normfc", "eagle3-qwen3moe-full", "nextn-glm4moe", "nextn-deepseek2",
	"nextn-qwen3next", "nextn-qwen35moe"};

static void heads_draft_like_the_reference(void **state)
{
	(void)state;
	for (const struct kernels *const *k = kernels_all; *k; k++)
		for (size_t i = 0; (*k)->supported() && i < sizeof(heads) / sizeof(heads[0]); i++)
			check_head(FOLDER, heads[i], (*k)->name);
}

/* Complete data, or other data of the same form. */
static void heads_of_another_folder_draft_like_the_reference(void **state)
{
	const char *folder = getenv("OUTRIDER_HEADS");
	char pattern[512], name[64];
	glob_t found;
	(void)state;
	if (!folder)
		skip();
	snprintf(pattern, sizeof(pattern), "%s/{eagle3,nextn}-*.json", folder);
	assert_int_equal(glob(pattern, GLOB_BRACE, NULL, &found), 0);
	for (size_t i = 0; i < found.gl_pathc; i++) {
		const char *file = strrchr(found.gl_pathv[i], '/') + 1;
		snprintf(name, sizeof(name), "%.*s", (int)strlen(file) - 5, file);
		check_head(folder, name, NULL);
	}
	globfree(&found);
}

/* Drafts are the same to the bit however the rows before them came: all at once or one by one. */
static void rows_do_not_depend_on_how_they_come(void **state)
{
	static struct states states;
	int32_t ids[33];
	struct rig target, rig;
	struct kv_seq whole, single;
	struct row a, b;
	(void)state;
	for (size_t h = 0; h < sizeof(heads) / sizeof(heads[0]); h += 5) {
		rig_open(&target,
			h == 0 ? FOLDER "/target-llama.f32.gguf"
			       : FOLDER "/nextn-deepseek2.f32.gguf",
			NULL, 2, KV_F32);
		rig_open_head(&rig, load_head(FOLDER, heads[h], target.model), NULL);
		states.head = rig.model->head;
		states.target = target.model;
		rig_ids(7, target.n_vocab, ids, 33);
		run_target(&target, &states, ids, 32);
		rig_seq(&rig, &whole);
		rig_seq(&rig, &single);
		run_rows(&rig, &whole, &states, ids + 1, 32, &a);
		float *kept = malloc(rig.n_vocab * sizeof(*kept));
		assert_non_null(kept);
		memcpy(kept, a.logits, rig.n_vocab * sizeof(*kept));
		for (uint32_t i = 0; i < 32; i++)
			run_rows(&rig, &single, &states, ids + 1 + i, 1, &b);
		assert_memory_equal(kept, b.logits, rig.n_vocab * sizeof(*kept));
		assert_memory_equal(a.out, b.out, rig.model->config.n_embd * sizeof(float));
		free(kept);
		kv_seq_exit(&rig.kv, &whole);
		kv_seq_exit(&rig.kv, &single);
		rig_close(&rig);
		rig_close(&target);
	}
}

/* Overwrites the bytes that follow `mark` in a copy of a head, and expects its refusal. */
struct damage {
	const char *mark; /* text in the file */
	size_t skip; /* bytes behind its end */
	const void *bytes;
	size_t n;
	const char *expected; /* in the message */
};

static void assert_refused(const char *path, const struct model *target, const char *expected)
{
	struct error err = {""};
	struct model *head;
	assert_true(head_load_eagle3(path, target, &head, &err) < 0);
	assert_null(head);
	if (!strstr(err.text, expected) || !strstr(err.text, path))
		fail_msg("\"%s\" does not name \"%s\" and the file", err.text, expected);
}

static unsigned char *read_file(const char *path, size_t *n)
{
	FILE *file = fopen(path, "rb");
	assert_non_null(file);
	assert_int_equal(fseek(file, 0, SEEK_END), 0);
	*n = (size_t)ftell(file);
	rewind(file);
	unsigned char *bytes = malloc(*n);
	assert_non_null(bytes);
	assert_int_equal(fread(bytes, 1, *n, file), *n);
	fclose(file);
	return bytes;
}

static void refuse_damaged(const struct model *target, const struct damage *d)
{
	char path[] = "/tmp/outrider-head-XXXXXX";
	size_t n;
	unsigned char *bytes = read_file(FOLDER "/eagle3-llama-own.f32.gguf", &n);
	unsigned char *at = d->mark ? memmem(bytes, n, d->mark, strlen(d->mark)) : NULL;
	assert_true(at || !d->mark);
	size_t to = at ? (size_t)(at - bytes) + strlen(d->mark) + d->skip : d->skip;
	assert_true(to + d->n <= n);
	memcpy(bytes + to, d->bytes, d->n);
	int fd = mkstemp(path);
	assert_true(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
	close(fd);
	free(bytes);
	assert_refused(path, target, d->expected);
	unlink(path);
}

/* Where d2t lies in the file. */
static size_t map_offset(const struct model *target)
{
	struct model *head = load_head(FOLDER, "eagle3-llama-own", target);
	const struct gguf_tensor *t = gguf_tensor_find(head->gguf, "d2t");
	size_t at = t->offset;
	model_free(&head);
	return at;
}

static void heads_for_other_targets_are_refused(void **state)
{
	struct error err = {""};
	struct model *llama, *moe;
	(void)state;
	assert_int_equal(model_load(FOLDER "/target-llama.f32.gguf", &llama, &err), 0);
	assert_int_equal(model_load(FOLDER "/target-qwen3moe.f32.gguf", &moe, &err), 0);
	assert_refused(FOLDER "/target-llama.f32.gguf", llama, "general.architecture");
	const size_t map = map_offset(llama);
	const uint32_t width = 65, layer = 9, vocab = 400;
	const uint64_t outside = 401, negative = UINT64_MAX;
	uint64_t first;
	size_t n;
	unsigned char *bytes = read_file(FOLDER "/eagle3-llama-own.f32.gguf", &n);
	memcpy(&first, bytes + map, sizeof(first));
	free(bytes);
	/* Behind a key come its type (4 bytes) and its value; in an array, 12 bytes more. */
	const struct damage damages[] = {
		{"eagle3.target_hidden_size", 4, &width, 4, "eagle3.target_hidden_size is 65"},
		{"eagle3.target_layers", 16, &layer, 4, "has layer 9 at index 0"},
		{"eagle3.vocab_size", 4, &vocab, 4, "eagle3.vocab_size is 400"},
		{NULL, map + 8, &outside, 8, "element 1 is 401"},
		{NULL, map + 8, &negative, 8, "element 1 is -1"},
		{NULL, map + 80, &first, 8, "elements 0 and 10 are both"},
		{"blk.0.attn_norm_2", 0, "x", 1, "attn_norm_2.weight is missing"},
	};
	for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++)
		refuse_damaged(llama, &damages[i]);
	model_free(&llama);
	model_free(&moe);
}

static void a_head_is_refused_as_a_model(void **state)
{
	struct error err = {""};
	struct model *model;
	(void)state;
	assert_int_equal(model_load(FOLDER "/eagle3-llama-own.f32.gguf", &model, &err), -ENOTSUP);
	assert_non_null(strstr(err.text, "general.architecture is \"eagle3\": a draft head"));
	assert_null(model);
}

static void a_model_without_such_a_layer_has_no_head(void **state)
{
	struct error err = {""};
	struct model *head;
	(void)state;
	assert_int_equal(
		head_load_nextn(FOLDER "/target-qwen3moe.f32.gguf", 0, &head, &err), -ENODATA);
	assert_null(head);
	assert_int_equal(head_load_nextn(FOLDER "/nothing.gguf", 0, &head, &err), -ENOENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(heads_draft_like_the_reference),
		cmocka_unit_test(heads_of_another_folder_draft_like_the_reference),
		cmocka_unit_test(rows_do_not_depend_on_how_they_come),
		cmocka_unit_test(heads_for_other_targets_are_refused),
		cmocka_unit_test(a_head_is_refused_as_a_model),
		cmocka_unit_test(a_model_without_such_a_layer_has_no_head),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
