/* Packed weights: the same model to the bit, and a copy that can be used again. */
#include "shared/model/arch/weights.h"
#include "kernels/tiles.h"
#include "tests/model/rig.h"

#include <errno.h>
#include <glob.h>

#define TOKENS 40

/* Logits of all positions; the model is packed where part says so. */
static float *run(const char *path, const char *kernels, uint32_t threads, bool packed,
	enum weights_part part, void *memory)
{
	struct rig rig;
	struct kv_seq seq;
	int32_t ids[TOKENS];

	rig_open(&rig, path, kernels, threads, KV_F16);
	if (packed)
		weights_use(rig.model, part, memory);
	float *logits = malloc((size_t)TOKENS * rig.n_vocab * sizeof(*logits));
	assert_non_null(logits);
	rig_ids(7, rig.n_vocab, ids, TOKENS);
	rig_seq(&rig, &seq);
	rig_chain(&rig, &seq, ids, TOKENS, 17, logits);
	kv_seq_exit(&rig.kv, &seq);
	rig_close(&rig);
	return logits;
}

static bool count_progress(void *arg)
{
	(*(unsigned *)arg)++;
	return true;
}

static bool count_and_stop(void *arg)
{
	(*(unsigned *)arg)++;
	return false;
}

static void packing_ends_when_it_is_told_to(void **state)
{
	glob_t found;
	struct model *model;
	struct error err = {""};
	unsigned calls = 0;

	(void)state;
	assert_int_equal(glob("models/*-moe-q8_0.gguf", 0, NULL, &found), 0);
	assert_int_equal(model_load(found.gl_pathv[0], &model, &err), 0);
	globfree(&found);
	uint64_t bytes = weights_bytes(model, WEIGHTS_ALL);
	assert_true(bytes > 0);
	void *memory = aligned_alloc(64, bytes);
	assert_non_null(memory);
	assert_int_equal(
		weights_pack(model, WEIGHTS_ALL, memory, 1, count_and_stop, &calls), -ECANCELED);
	assert_int_equal(calls, 1);
	free(memory);
	model_free(&model);
}

/* The packed copy of a file's matrices, made by so many threads. */
static void *pack(const char *path, enum weights_part part, uint32_t threads, uint64_t *bytes)
{
	struct model *model;
	struct error err = {""};
	unsigned calls = 0;

	if (model_load(path, &model, &err) < 0)
		fail_msg("%s", err.text);
	*bytes = weights_bytes(model, part);
	void *memory = aligned_alloc(64, *bytes + 64);
	assert_non_null(memory);
	memset(memory, 0x5a, *bytes + 64);
	assert_int_equal(weights_pack(model, part, memory, threads, count_progress, &calls), 0);
	for (uint32_t i = 0; i < 64; i++)
		assert_int_equal(((unsigned char *)memory)[*bytes + i], 0x5a);
	assert_true(threads > 1 || *bytes == 0 || calls > 0);
	model_free(&model);
	return memory;
}

static uint32_t vocabulary_of(const char *path)
{
	struct model *model;
	struct error err;

	assert_int_equal(model_load(path, &model, &err), 0);
	uint32_t n = model->config.n_vocab;
	model_free(&model);
	return n;
}

static void each_model(void (*check)(const char *path))
{
	glob_t found;

	assert_int_equal(glob("tests/data/golden/quants/*.gguf", 0, NULL, &found), 0);
	assert_int_equal(glob("models/*q[48]_0.gguf", GLOB_APPEND, NULL, &found), 0);
	assert_true(found.gl_pathc > 8);
	/* An EAGLE-3 head is no model of its own. */
	for (size_t i = 0; i < found.gl_pathc; i++)
		if (strstr(found.gl_pathv[i], "eagle3") == NULL)
			check(found.gl_pathv[i]);
	globfree(&found);
}

static void check_logits(const char *path)
{
	static const char *const kernels[] = {"auto", "scalar", "avx2", "reference"};
	size_t bytes = (size_t)TOKENS * vocabulary_of(path) * sizeof(float);
	struct error err;

	for (int part = WEIGHTS_DENSE; part <= WEIGHTS_ALL; part++) {
		uint64_t packed_bytes;
		void *memory = pack(path, (enum weights_part)part, 2, &packed_bytes);
		for (size_t k = 0; k < sizeof(kernels) / sizeof(kernels[0]); k++) {
			if (!kernels_select(kernels[k], &err))
				continue;
			float *plain = run(path, kernels[k], 1, false, WEIGHTS_ALL, NULL);
			float *tiles =
				run(path, kernels[k], 2, true, (enum weights_part)part, memory);
			if (memcmp(plain, tiles, bytes) != 0)
				fail_msg("%s, %s kernels: packed weights give other logits", path,
					kernels[k]);
			free(plain);
			free(tiles);
		}
		free(memory);
	}
}

static void packed_weights_give_the_same_logits_to_the_bit(void **state)
{
	(void)state;
	each_model(check_logits);
}

static void check_threads(const char *path)
{
	uint64_t bytes, again;
	void *one = pack(path, WEIGHTS_ALL, 1, &bytes);
	void *many = pack(path, WEIGHTS_ALL, 5, &again);

	assert_int_equal(bytes, again);
	assert_memory_equal(one, many, bytes);
	free(one);
	free(many);
}

static void the_copy_does_not_depend_on_who_makes_it(void **state)
{
	(void)state;
	each_model(check_threads);
}

/* How many matrices are in the copy, and that the embedding goes with a tied output. */
static void check_use(const char *path)
{
	struct model *model;
	struct error err;
	uint64_t bytes;
	unsigned char *memory = pack(path, WEIGHTS_ALL, 1, &bytes);

	assert_int_equal(model_load(path, &model, &err), 0);
	bool tied = model->embedding.data == model->output.data;
	bool possible = tiles_possible(&model->output);
	weights_use(model, WEIGHTS_ALL, memory);
	const unsigned char *output = model->output.data;
	assert_int_equal(possible, output >= memory && output < memory + bytes);
	assert_int_equal(tied, model->embedding.data == model->output.data);
	assert_int_equal(model->output.layout, possible ? LAYOUT_TILES : LAYOUT_ROWS);
	model_free(&model);
	free(memory);
}

static void what_can_be_packed_lies_in_the_copy(void **state)
{
	(void)state;
	each_model(check_use);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(packing_ends_when_it_is_told_to),
		cmocka_unit_test(packed_weights_give_the_same_logits_to_the_bit),
		cmocka_unit_test(the_copy_does_not_depend_on_who_makes_it),
		cmocka_unit_test(what_can_be_packed_lies_in_the_copy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
