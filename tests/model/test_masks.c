/*
 * Multi-token prediction with a gated adapter, against a reference in torch that computes every row
 * anew (tests/data/golden/heads, tolerances from the README there): the logits of tokens, the
 * states of masks, the drafts for every number of accepted ones. Tokens have the same bits as
 * without the adapter. Then the files that must be refused.
 */
#include "tests/model/golden.h"
#include "tests/model/gguf_build.h"

#include "kernels/cpu/simd.h"

#include <errno.h>

#define FOLDER "tests/data/golden/heads"
#define ADAPTER FOLDER "/mtp-qwen3moe.f32.gguf"
#define TARGET FOLDER "/target-qwen3moe.f32.gguf"
enum { STATE = 64, ROWS = 16, TOLERANCE_PER = 5000 }; /* 2e-4 of the RMS */

static float states[RIG_BATCH][STATE]; /* of the last pass, behind the last layer */

static void take_states(void *arg, uint32_t layer, uint32_t n_tokens, const struct rows *x)
{
	const struct model *model = arg;
	if (layer != model->config.n_layers)
		return;
	for (uint32_t t = 0; t < n_tokens; t++)
		memcpy(states[t], x->buffer->host + x->offset + t * x->stride, sizeof(states[t]));
}

static void open_rig(struct rig *rig, const struct adapter *adapter, const char *kernels)
{
	struct error err = {""};
	struct forward_limits limits = rig_limits(RIG_CONTEXT);
	rig_open(rig, TARGET, kernels, 2, KV_F32);
	forward_destroy(&rig->forward);
	limits.adapter = adapter;
	if (forward_create(rig->model, rig->backend, &rig->kv, &rig->experts.source, &limits,
		    &rig->forward, &err) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(rig->model->config.n_embd, STATE);
}

/* A pass over anchors and the k masks behind each; anchors come first. Keeps the first anchor. */
static void run_pass(
	struct rig *rig, struct kv_seq *seq, const int32_t *anchors, uint32_t n, uint32_t k)
{
	struct batch_token batch[RIG_BATCH];
	uint32_t cells[RIG_BATCH], rows = n * (k + 1);
	assert_int_equal(kv_take(&rig->kv, seq, rows, cells), 0);
	for (uint32_t i = 0; i < n; i++)
		batch[i] = (struct batch_token){
			seq, anchors[i], seq->n + i, (int32_t)i - 1, true, cells[i], false, false};
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = 0; j < k; j++) {
			uint32_t at = n + i * k + j;
			batch[at] = (struct batch_token){seq, BATCH_MASK(j), seq->n + i + j + 1,
				(int32_t)(j == 0 ? i : at - 1), false, cells[at], false, false};
		}
	assert_int_equal(forward_run(rig->forward, batch, rows), 0);
	kv_commit(&rig->kv, seq, cells, 1, cells + 1, rows - 1);
}

static void assert_near(const char *prompt, const char *what, size_t i, const float *got,
	const json_t *expected, uint32_t n)
{
	struct difference d = compare(got, expected, n);
	if (!(d.max <= d.reference_rms / TOLERANCE_PER))
		fail_msg("prompt %s: %s %zu differ by %g of an RMS of %g", prompt, what, i, d.max,
			d.reference_rms);
}

/* The mask's state behind the output norm. */
static void check_state(const struct model *model, const char *prompt, uint32_t row, size_t mask,
	const json_t *expected)
{
	float z[STATE];
	double sum = 0;
	for (uint32_t i = 0; i < STATE; i++)
		sum += (double)states[row][i] * (double)states[row][i];
	double factor = 1 / sqrt(sum / STATE + (double)model->config.rms_eps);
	for (uint32_t i = 0; i < STATE; i++)
		z[i] = (float)((double)states[row][i] * factor) * model->output_norm[i];
	assert_near(prompt, "states of mask", mask, z, expected, STATE);
}

static double chance_of(const json_t *logits, int32_t token)
{
	double sum = 0, of = json_number_value(json_array_get(logits, (size_t)token));
	size_t i;
	json_t *value;
	json_array_foreach(logits, i, value) sum += exp(json_number_value(value) - of);
	return 1 / sum;
}

static const struct sampler_params *greedy_params(void)
{
	static struct sampler_params params;
	sampler_params_default(&params);
	params.temperature = 0;
	return &params;
}

/* The drafts behind each anchor, as if those before it were accepted; all in one call. */
static void check_drafts(
	struct rig *rig, const char *prompt, const json_t *pass, uint32_t n, uint32_t k)
{
	const struct sampler_params *greedy = greedy_params();
	struct forward_masks groups[ROWS];
	int32_t drafted[ROWS][ROWS];
	float chance[ROWS][ROWS];
	size_t a;
	json_t *of;
	json_array_foreach(json_object_get(pass, "if_accepted"), a, of) groups[a] =
		(struct forward_masks){.row = n + (uint32_t)a * k,
			.n = k,
			.token = (int32_t)json_integer_value(json_object_get(of, "bonus")),
			.like = {.params = greedy},
			.drafted = drafted[a],
			.chance = chance[a]};
	assert_int_equal(a, n);
	assert_int_equal(forward_draft(rig->forward, groups, n), 0);
	json_array_foreach(json_object_get(pass, "if_accepted"), a, of)
	{
		const json_t *next = json_object_get(of, "next_anchors");
		for (uint32_t j = 0; j < k; j++) {
			if (drafted[a][j] != json_integer_value(json_array_get(next, j + 1)))
				fail_msg("prompt %s: draft %u behind anchor %zu is %d", prompt, j,
					a, drafted[a][j]);
			double expected =
				chance_of(json_array_get(json_object_get(of, "sampler_logits"), j),
					drafted[a][j]);
			assert_true(fabs(expected - (double)chance[a][j]) < 1e-3);
		}
	}
}

static void check_pass(struct rig *rig, struct rig *plain, const struct adapter *adapter,
	const char *prompt, const json_t *pass, struct kv_seq *seq, struct kv_seq *plain_seq)
{
	int32_t anchors[RIG_CONTEXT];
	uint32_t n = read_ids(json_object_get(pass, "anchors"), anchors), k = adapter->draft_length;
	size_t i, j;
	json_t *of, *state;
	assert_int_equal(seq->n, json_integer_value(json_object_get(pass, "prefix")));
	run_pass(rig, seq, anchors, n, k);
	run_pass(plain, plain_seq, anchors, n, 0);
	json_array_foreach(json_object_get(pass, "anchor_logits"), i, of)
	{
		const float *logits = forward_logits(rig->forward, (uint32_t)i);
		assert_near(prompt, "logits of anchor", i, logits, json_object_get(of, "logits"),
			rig->n_vocab);
		assert_memory_equal(logits, forward_logits(plain->forward, (uint32_t)i),
			rig->n_vocab * sizeof(*logits));
	}
	assert_int_equal(i, n);
	json_array_foreach(json_object_get(pass, "mask_hidden"), i, of) json_array_foreach(of, j,
		state) check_state(rig->model, prompt, n + (uint32_t)(i * k + j), i * k + j, state);
	assert_int_equal(i, n);
	check_drafts(rig, prompt, pass, n, k);
}

static struct adapter *load(const char *path, const struct model *target)
{
	struct error err = {""};
	struct adapter *adapter;
	if (adapter_load(path, target, &adapter, &err) < 0)
		fail_msg("%s", err.text);
	return adapter;
}

static void check_prompts(const char *kernels)
{
	struct rig rig, plain;
	struct model *model;
	struct error err;
	json_t *golden = load_json(FOLDER "/mtp-qwen3moe.json"), *prompt, *pass;
	size_t i, p;
	assert_int_equal(model_load(TARGET, &model, &err), 0);
	struct adapter *adapter = load(ADAPTER, model);
	assert_int_equal(adapter->draft_length, 3);
	assert_int_equal(adapter->rank, 4);
	open_rig(&rig, adapter, kernels);
	open_rig(&plain, NULL, kernels);
	forward_set_hooks(
		rig.forward, &(struct forward_hooks){.residual = take_states, .arg = rig.model});
	json_array_foreach(json_object_get(golden, "prompts"), i, prompt)
	{
		const char *name = json_string_value(json_object_get(prompt, "name"));
		int32_t ids[RIG_CONTEXT];
		uint32_t n = read_ids(json_object_get(prompt, "ids"), ids);
		struct kv_seq seq, plain_seq;
		rig_seq(&rig, &seq);
		rig_seq(&plain, &plain_seq);
		rig_chain(&rig, &seq, ids, n, RIG_BATCH, NULL);
		rig_chain(&plain, &plain_seq, ids, n, RIG_BATCH, NULL);
		json_array_foreach(json_object_get(prompt, "passes"), p, pass)
			check_pass(&rig, &plain, adapter, name, pass, &seq, &plain_seq);
		assert_int_equal(p, 2);
		kv_seq_exit(&rig.kv, &seq);
		kv_seq_exit(&plain.kv, &plain_seq);
	}
	assert_true(i >= 2);
	rig_close(&rig);
	rig_close(&plain);
	adapter_free(&adapter);
	model_free(&model);
	json_decref(golden);
}

static void masks_draft_like_the_reference(void **state)
{
	(void)state;
	for (const struct kernels *const *k = kernels_all; *k; k++)
		if ((*k)->supported())
			check_prompts((*k)->name);
}

/* States and drafts of a pass, and their chances. */
struct outcome {
	float states[RIG_BATCH][STATE];
	int32_t drafted[2][3];
	float chance[2][3];
};

static void run_outcome(const char *kernels, struct adapter *adapter, struct outcome *out)
{
	const struct sampler_params *greedy = greedy_params();
	struct forward_masks groups[2];
	struct rig rig;
	struct kv_seq seq;
	int32_t ids[20];
	open_rig(&rig, adapter, kernels);
	forward_set_hooks(
		rig.forward, &(struct forward_hooks){.residual = take_states, .arg = rig.model});
	rig_ids(3, rig.n_vocab, ids, 20);
	rig_seq(&rig, &seq);
	rig_chain(&rig, &seq, ids, 18, RIG_BATCH, NULL);
	run_pass(&rig, &seq, ids + 18, 2, 3);
	for (uint32_t i = 0; i < 2; i++)
		groups[i] = (struct forward_masks){.row = 2 + 3 * i,
			.n = i == 0 ? 2 : 3,
			.token = ids[i],
			.like = {.params = greedy},
			.drafted = out->drafted[i],
			.chance = out->chance[i]};
	assert_int_equal(forward_draft(rig.forward, groups, 2), 0);
	memcpy(out->states, states, sizeof(out->states));
	groups[1].row = 1; /* a token */
	assert_int_equal(forward_draft(rig.forward, groups, 2), -EINVAL);
	kv_seq_exit(&rig.kv, &seq);
	rig_close(&rig);
}

static void all_instruction_sets_give_the_same_bits(void **state)
{
	static struct outcome first, other;
	struct error err;
	struct model *model;
	bool any = false;
	(void)state;
	assert_int_equal(model_load(TARGET, &model, &err), 0);
	struct adapter *adapter = load(ADAPTER, model);
	for (const struct kernels *const *k = kernels_all; *k; k++) {
		if (!(*k)->supported() || strcmp((*k)->name, "reference") == 0)
			continue;
		memset(states, 0, sizeof(states));
		run_outcome((*k)->name, adapter, any ? &other : &first);
		if (any)
			assert_memory_equal(&first, &other, sizeof(first));
		any = true;
	}
	adapter_free(&adapter);
	model_free(&model);
}

static void masks_without_an_adapter_are_refused(void **state)
{
	struct rig rig;
	struct kv_seq seq;
	uint32_t cell;
	(void)state;
	rig_open(&rig, TARGET, NULL, 1, KV_F32);
	rig_seq(&rig, &seq);
	assert_int_equal(kv_take(&rig.kv, &seq, 1, &cell), 0);
	const struct batch_token one = {&seq, BATCH_MASK(0), 0, -1, true, cell, false, false};
	assert_int_equal(forward_run(rig.forward, &one, 1), -EINVAL);
	kv_seq_exit(&rig.kv, &seq);
	rig_close(&rig);
}

/* Replaces `n` bytes that follow the text `mark` by `skip` bytes, in a copy of the adapter. */
struct damage {
	const char *mark;
	size_t skip;
	const void *bytes;
	size_t n;
	const char *expected; /* in the message */
};

static void assert_refused(const char *path, const char *target_path, const char *expected)
{
	struct error err = {""};
	struct adapter *adapter;
	struct model *target;
	assert_int_equal(model_load(target_path, &target, &err), 0);
	assert_true(adapter_load(path, target, &adapter, &err) < 0);
	assert_null(adapter);
	if (!strstr(err.text, expected) || !strstr(err.text, path))
		fail_msg("\"%s\" does not name %s and %s", err.text, path, expected);
	model_free(&target);
}

static void check_damage(const unsigned char *bytes, size_t size, const struct damage *d)
{
	char path[] = "/tmp/outrider-adapter-XXXXXX";
	unsigned char *copy = malloc(size);
	int fd = mkstemp(path);
	assert_true(fd >= 0 && copy);
	memcpy(copy, bytes, size);
	unsigned char *at = memmem(copy, size, d->mark, strlen(d->mark));
	assert_non_null(at);
	memcpy(at + strlen(d->mark) + d->skip, d->bytes, d->n);
	assert_int_equal(write(fd, copy, size), size);
	close(fd);
	assert_refused(path, TARGET, d->expected);
	unlink(path);
	free(copy);
}

static void files_that_do_not_fit_are_refused_by_name(void **state)
{
	const uint32_t k[] = {0, 16};
	const float nan_value = NAN;
	const struct damage damages[] = {
		{"general.architecture", 12, "qwen2moe", 8, "general.architecture is \"qwen2moe\""},
		{"general.type", 12, "adaptor", 7, "general.type is \"adaptor\""},
		{"adapter.type", 12, "loha", 4, "adapter.type is \"loha\""},
		{"adapter.mtp.gated", 4, "\0", 1, "adapter.mtp.gated"},
		{"adapter.mtp.draft_length", 4, &k[0], 4, "adapter.mtp.draft_length"},
		{"adapter.mtp.draft_length", 4, &k[1], 4, "adapter.mtp.draft_length"},
		{"adapter.mtp.draft_lengt", 0, "x", 1, "adapter.mtp.draft_length is missing"},
		{"adapter.lora.alpha", 4, &nan_value, 4, "adapter.lora.alpha"},
		{"blk.3.attn_q.weight.lora_", 0, "x", 1, "blk.3.attn_q.weight.lora_a is missing"},
		{"blk.7.attn_v.weight.lor", 0, "x", 1, "blk.7.attn_v.weight.lora_a is missing"},
		{"blk.1.attn_k.weight.lora_b", 4 + 8, &(uint64_t){32}, 8,
			"blk.1.attn_k.weight.lora_b has shape"},
		{"blk.2.attn_q.weight.lora_a", 4 + 8, &(uint64_t){0}, 8,
			"blk.2.attn_q.weight.lora_a"},
		{"mtp.mask_embd.weigh", 0, "x", 1, "mtp.mask_embd.weight is missing"},
		{"mtp.sampler.1.nor", 0, "x", 1, "mtp.sampler.1.norm.weight is missing"},
	};
	char path[] = FOLDER "/mtp-qwen3moe.f32.gguf";
	FILE *f = fopen(path, "rb");
	(void)state;
	assert_non_null(f);
	fseek(f, 0, SEEK_END);
	size_t size = (size_t)ftell(f);
	unsigned char *bytes = malloc(size);
	rewind(f);
	assert_int_equal(fread(bytes, 1, size, f), size);
	fclose(f);
	for (size_t i = 0; i < sizeof(damages) / sizeof(damages[0]); i++)
		check_damage(bytes, size, &damages[i]);
	free(bytes);
	assert_refused(path, FOLDER "/target-llama.f32.gguf", "\"llama\" is wanted");
	assert_refused(FOLDER "/eagle3-llama-own.f32.gguf", TARGET, "an EAGLE-3 head");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(masks_draft_like_the_reference),
		cmocka_unit_test(all_instruction_sets_give_the_same_bits),
		cmocka_unit_test(masks_without_an_adapter_are_refused),
		cmocka_unit_test(files_that_do_not_fit_are_refused_by_name),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
