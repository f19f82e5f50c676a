/* Picks as the end of a pass: what is picked, and its hash, are those of the logits that a pass keeps, though the rows that are
 * only picked from take turns in the same memory. */
#include "kernels/logits_hash.h"
#include "tests/model/rig.h"

#define MODEL "models/outrider-demo-moe-q8_0.gguf"

/* More than two turns. */
enum { N = 2 * FORWARD_PICKS + 20, BATCH = N + 4, KEPT = 9 };

static struct rig rig;
static struct kv_seq seq;
static struct sampler_params params[3];
static int32_t ids[N];
static float *expected; /* [N][n_vocab] */
static struct batch_token batch[BATCH];
static struct pick_row picks[BATCH];
static struct pick_result results[BATCH];
static uint32_t cells[N];

static int set_up(void **state)
{
	(void)state;
	struct error err;
	const struct forward_limits limits = {
		.n_batch = BATCH, .n_logits = KEPT, .n_picks = BATCH, .n_context = RIG_CONTEXT};
	rig_open(&rig, MODEL, NULL, 2, KV_F16);
	rig_ids(3, rig.n_vocab, ids, N);
	expected = malloc((size_t)N * rig.n_vocab * sizeof(*expected));
	assert_non_null(expected);
	rig_seq(&rig, &seq);
	rig_chain(&rig, &seq, ids, N, RIG_BATCH, expected);
	kv_seq_exit(&rig.kv, &seq);
	forward_destroy(&rig.forward);
	assert_int_equal(forward_create(rig.model, rig.backend, &rig.kv, &rig.experts.source,
				 &limits, &rig.forward, &err),
		0);
	for (uint32_t i = 0; i < 3; i++) {
		sampler_params_default(&params[i]);
		params[i].temperature = (float)i * 0.7f;
		params[i].repeat_penalty = 1.1f;
		params[i].seed = i;
	}
	params[2].top_p = 0.9f;
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	free(expected);
	rig_close(&rig);
	return 0;
}

/* All ids as one chain, of which every `step`th token is kept, up to KEPT of them; every token is picked from, behind the ids up
 * to it, in falling order if that is asked for. */
static void fill(uint32_t step, bool falling)
{
	rig_seq(&rig, &seq);
	assert_int_equal(kv_take(&rig.kv, &seq, N, cells), 0);
	for (uint32_t i = 0; i < N; i++) {
		uint32_t at = falling ? N - 1 - i : i;
		batch[i] = (struct batch_token){.seq = &seq,
			.token = ids[i],
			.position = i,
			.parent = (int32_t)i - 1,
			.logits = step > 0 && i % step == 0 && i / step < KEPT,
			.cell = cells[i]};
		picks[i] = (struct pick_row){.params = &params[at % 3],
			.history = ids,
			.n_history = at + 1,
			.parent = -1,
			.source = at,
			.position = at + 1,
			.want_p = true,
			.want_hash = true};
	}
}

static void give_back(void)
{
	kv_commit(&rig.kv, &seq, NULL, 0, cells, N);
	kv_seq_exit(&rig.kv, &seq);
}

static void picks_are_made_from_the_logits_that_a_pass_would_keep(void **state)
{
	(void)state;
	const uint32_t steps[] = {0, 1, 7, N / 2};
	struct sampler sampler;
	assert_int_equal(sampler_init(&sampler, rig.n_vocab), 0);
	for (size_t k = 0; k < 2 * sizeof(steps) / sizeof(steps[0]); k++) {
		fill(steps[k / 2], k % 2);
		memset(results, 0xAA, sizeof(results));
		assert_int_equal(forward_run_picks(rig.forward, batch, N, picks, N, results), 0);
		for (uint32_t i = 0; i < N; i++) {
			uint32_t at = picks[i].source;
			const float *row = expected + (size_t)at * rig.n_vocab;
			float p;
			assert_int_equal(results[i].token, sampler_pick(&sampler, picks[i].params,
								   row, ids, at + 1, at + 1, &p));
			assert_memory_equal(&results[i].p, &p, sizeof(p));
			assert_int_equal(results[i].hash, logits_hash(row, rig.n_vocab));
			assert_true(results[i].finite);
			if (batch[at].logits)
				assert_memory_equal(forward_logits(rig.forward, at), row,
					rig.n_vocab * sizeof(*row));
		}
		give_back();
	}
	sampler_exit(&sampler);
}

static void more_than_a_pass_has_room_for_is_refused(void **state)
{
	(void)state;
	fill(0, false);
	for (uint32_t i = 0; i <= KEPT; i++)
		batch[i].logits = true;
	assert_int_equal(forward_run(rig.forward, batch, N), -EINVAL);
	batch[KEPT].logits = false;
	assert_int_equal(
		forward_run_picks(rig.forward, batch, N, picks, BATCH + 1, results), -EINVAL);
	picks[5].source = N;
	assert_int_equal(forward_run_picks(rig.forward, batch, N, picks, N, results), -EINVAL);
	picks[5].source = 5;
	picks[5].parent = 5;
	assert_int_equal(forward_run_picks(rig.forward, batch, N, picks, N, results), -EINVAL);
	picks[5].parent = -1;
	batch[1].logits = false;
	assert_int_equal(forward_run_picks(rig.forward, batch, N, picks, N, results), 0);
	/* One token picked from so often that there are more rows than tokens. */
	for (uint32_t i = 0; i < BATCH; i++) {
		picks[i] = picks[0];
		picks[i].source = N - 1;
	}
	assert_int_equal(forward_run_picks(rig.forward, batch, N, picks, BATCH, results), -EINVAL);
	give_back();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(picks_are_made_from_the_logits_that_a_pass_would_keep),
		cmocka_unit_test(more_than_a_pass_has_room_for_is_refused),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
