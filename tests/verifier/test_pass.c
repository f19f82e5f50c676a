/* What a pass decides: who takes part, whose drafts have its rows, what becomes of late ones, and when tokens are published. */
#include "tests/verifier/engine.h"

static int32_t expected[RIG_SESSIONS][RIG_TOKENS]; /* the answers at K = 0 */
static struct engine_rig rig;

static void need(void)
{
	if (access(RIG_MODEL, R_OK) != 0) {
		print_message("# no demo model\n");
		skip();
	}
}

enum { PROMPT = 4 };

static void check_answer(uint32_t index)
{
	const struct session_page *page = rig.slots[index].page;

	assert_int_equal(journal_state(page), SESSION_DONE);
	assert_int_equal(journal_n_tokens(page), PROMPT + RIG_TOKENS);
	assert_memory_equal(page->tokens + PROMPT, expected[index], sizeof(expected[index]));
	/* And so it is for a successor. */
	assert_memory_equal(
		rig.slots[index].shared->tokens + PROMPT, expected[index], sizeof(expected[index]));
}

static int group_setup(void **state)
{
	(void)state;
	if (access(RIG_MODEL, R_OK) != 0)
		return 0;
	engine_rig_open(&rig, (const char *const[]){NULL});
	for (uint32_t i = 0; i < RIG_SESSIONS; i++)
		engine_rig_begin(&rig, i, PROMPT, 0);
	engine_rig_end(&rig);
	for (uint32_t i = 0; i < RIG_SESSIONS; i++)
		memcpy(expected[i], rig.slots[i].page->tokens + PROMPT, sizeof(expected[i]));
	engine_rig_close(&rig);
	return 0;
}

static void prompts_share_a_chunk_and_paused_sessions_sit_out(void **state)
{
	(void)state;
	need();
	engine_rig_open(&rig, (const char *const[]){"prefill_chunk=8", "ahead_max=0", NULL});
	struct engine_session *a = engine_rig_begin(&rig, 0, 12, 0);
	struct engine_session *b = engine_rig_begin(&rig, 1, 6, 0);
	const struct pass *pass = &rig.engine->pass;

	atomic_store(&b->slot->credit, 1);
	assert_int_equal(pass_run(rig.engine), 1);
	assert_int_equal(pass->parts[0].n, 8);
	assert_false(pass->parts[0].emits);
	assert_int_equal(pass->n_picks, 0);
	assert_int_equal(pass_run(rig.engine), 2);
	assert_int_equal(engine_rig_part(&rig, a)->n, 4);
	assert_true(engine_rig_part(&rig, a)->emits && !engine_rig_part(&rig, a)->decodes);
	assert_int_equal(engine_rig_part(&rig, b)->n, 4);
	assert_int_equal(pass->n_prefill, 8);
	assert_int_equal(a->n_tokens, 13);
	assert_int_equal(pass_run(rig.engine), 2);
	assert_true(engine_rig_part(&rig, a)->decodes);
	assert_int_equal(engine_rig_part(&rig, b)->n, 2);
	/* Its client has taken one, and this is that one. */
	assert_int_equal(pass_run(rig.engine), 1);
	assert_null(engine_rig_part(&rig, b));
	atomic_store(&b->slot->credit, RIG_TOKENS);
	engine_changed(rig.engine, b->index);
	assert_int_equal(pass_run(rig.engine), 2);
	assert_int_equal(b->n_tokens, 6 + 2);
	engine_rig_end(&rig);
	engine_rig_close(&rig);
}

/* Two sessions that want more rows than there are. confidence: what the drafter says of its tokens; the first n_right of each draft
 * are right. Runs both prompts. */
static void begin_two(struct engine_session *s[2], const char *sessions_max,
	const uint32_t n_right[2], const float confidence[2])
{
	engine_rig_open(&rig, (const char *const[]){sessions_max, NULL});
	for (uint32_t i = 0; i < 2; i++) {
		s[i] = engine_rig_begin(&rig, i, PROMPT, LIMIT_DRAFT_DEPTH);
		rig.drafts[i].right = expected[i];
		rig.drafts[i].n_right = n_right[i];
		rig.drafts[i].confidence = confidence[i];
	}
	assert_int_equal(pass_run(rig.engine), 2);
}

enum { ROOM = 2 * (LIMIT_DRAFT_SHARE + 1) - 2 };

static void rows_go_to_the_session_whose_drafts_are_accepted(void **state)
{
	struct engine_session *s[2];

	(void)state;
	need();
	begin_two(s, "sessions_max=2", (const uint32_t[]){LIMIT_DRAFT_DEPTH, 0},
		(const float[]){1, 1});
	assert_int_equal(pass_run(rig.engine), 2);
	/* Nothing is known of either. */
	assert_int_equal(rig.drafts[0].asked.nodes, ROOM / 2);
	assert_int_equal(rig.drafts[1].asked.nodes, ROOM / 2);
	assert_int_equal(engine_rig_part(&rig, s[0])->n_drafts, ROOM / 2);
	assert_int_equal(engine_rig_part(&rig, s[1])->n_drafts, ROOM / 2);
	assert_int_equal(engine_rig_part(&rig, s[0])->n_emitted, ROOM / 2 + 1);
	assert_int_equal(pass_run(rig.engine), 2);
	assert_true(rig.drafts[0].asked.nodes > 2 * rig.drafts[1].asked.nodes);
	uint32_t first = engine_rig_part(&rig, s[0])->n_drafts;
	uint32_t second = engine_rig_part(&rig, s[1])->n_drafts;
	assert_int_equal(first + second, ROOM);
	assert_true(first > 2 * second);
	engine_rig_end(&rig);
	check_answer(0);
	check_answer(1);
	engine_rig_close(&rig);
}

static void rows_go_to_the_drafts_that_the_drafter_is_sure_of(void **state)
{
	struct engine_session *s[2];

	(void)state;
	need();
	begin_two(s, "sessions_max=4", (const uint32_t[]){3, 3}, (const float[]){0.5f, 0.98f});
	/* Drafts that were asked for when there were more rows have come. */
	rig.engine->pass.start_ns = clock_ns();
	pass_sweep(rig.engine, &rig.engine->pass);
	assert_int_equal(pass_plan(rig.engine, &rig.engine->pass), 2);
	pass_draft(rig.engine, &rig.engine->pass);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(drafts_reply(&rig.engine->drafts, i)->n, ROOM + 1);
	rig.engine->tuning->sessions_max = 2;
	assert_int_equal(pass_run(rig.engine), 2);
	const struct pass_part *unsure = engine_rig_part(&rig, s[0]),
			       *sure = engine_rig_part(&rig, s[1]);
	assert_int_equal(unsure->n_drafts + sure->n_drafts, ROOM);
	assert_true(3 * sure->n_drafts > 5 * unsure->n_drafts);
	assert_int_equal(unsure->out.n_accepted, 3);
	assert_int_equal(sure->out.n_accepted, 3);
	engine_rig_end(&rig);
	check_answer(0);
	check_answer(1);
	engine_rig_close(&rig);
}

/* A session without drafts, and one whose draft is late; the drafts of the second usually take that long. */
static void begin_late(struct engine_session *s[2], uint64_t mean_ns)
{
	engine_rig_open(&rig, (const char *const[]){NULL});
	s[0] = engine_rig_begin(&rig, 0, PROMPT, 0);
	s[1] = engine_rig_begin(&rig, 1, PROMPT, 8);
	rig.drafts[1].right = expected[1];
	rig.drafts[1].n_right = 8;
	rig.drafts[1].confidence = 1;
	rig.drafts[1].silent = true;
	assert_int_equal(pass_run(rig.engine), 2);
	rig.engine->pass_ns = 1000000;
	rig.engine->drafts.sessions[1].uid = s[1]->uid;
	rig.engine->drafts.sessions[1].pace =
		(struct pace){.mean_ns = mean_ns, .yield = 8, .n_times = 9, .n_yields = 9};
}

static void end_late(void)
{
	rig.drafts[1].silent = false;
	/* What it was silent about never comes. */
	drafts_peer_joined(&rig.engine->drafts, 2);
	engine_rig_end(&rig);
	check_answer(0);
	check_answer(1);
	assert_true(rig.slots[1].usage.accepted > 0);
	engine_rig_close(&rig);
}

static void a_session_whose_draft_takes_longer_than_a_pass_sits_out(void **state)
{
	struct engine_session *s[2];

	(void)state;
	need();
	begin_late(s, 1000000000000u);
	for (uint32_t i = 1; i < 4; i++) {
		assert_int_equal(pass_run(rig.engine), 1);
		assert_null(engine_rig_part(&rig, s[1]));
		assert_int_equal(s[0]->n_tokens, PROMPT + 1 + i);
		assert_int_equal(s[1]->n_tokens, PROMPT + 1);
		assert_int_equal(atomic_load(&rig.engine->late_out), i);
	}
	assert_int_equal(atomic_load(&rig.engine->late_without), 0);
	end_late();
}

static void a_session_whose_draft_should_be_there_goes_on_without(void **state)
{
	struct engine_session *s[2];

	(void)state;
	need();
	begin_late(s, 1);
	assert_int_equal(pass_run(rig.engine), 2);
	assert_int_equal(engine_rig_part(&rig, s[1])->want.k, 8);
	assert_int_equal(engine_rig_part(&rig, s[1])->n_drafts, 0);
	assert_int_equal(s[1]->n_tokens, PROMPT + 2);
	assert_int_equal(atomic_load(&rig.engine->late_out), 0);
	assert_int_equal(atomic_load(&rig.engine->late_without), 1);
	/* The request is still out, and no second one goes behind it. */
	uint64_t sequence = rig.engine->drafts.sequence;
	assert_int_equal(pass_run(rig.engine), 2);
	assert_true(rig.engine->drafts.sequence == sequence);
	assert_int_equal(s[1]->n_tokens, PROMPT + 3);
	end_late();
}

static void where_everybody_is_late_nobody_sits_out(void **state)
{
	struct engine_session *s[2];

	(void)state;
	need();
	begin_late(s, 1000000000000u);
	atomic_store(&s[0]->slot->cancel, true);
	engine_changed(rig.engine, 0);
	assert_int_equal(pass_run(rig.engine), 1);
	assert_int_equal(s[1]->n_tokens, PROMPT + 2);
	assert_int_equal(atomic_load(&rig.engine->late_without), 1);
	engine_rig_close(&rig);
}

/* How many tokens of session 0 are published when the first step of a pass is queued, and when its end is waited for. */
static uint32_t at_first, at_wait;
static struct backend_ops real;

static void spy_embed(struct queue *q, const struct step_embed *step)
{
	at_first = atomic_load(&rig.slots[0].shared->n_tokens);
	real.embed(q, step);
}

static int spy_wait(struct queue *q, ticket t)
{
	at_wait = atomic_load(&rig.slots[0].shared->n_tokens);
	return real.wait(q, t);
}

static struct engine_session *begin_spied(bool behind, int32_t k)
{
	engine_rig_open(&rig, (const char *const[]){NULL});
	real = rig.ops;
	rig.ops.behind = behind;
	rig.ops.embed = spy_embed;
	rig.ops.wait = spy_wait;
	return engine_rig_begin(&rig, 0, PROMPT, k);
}

static uint32_t published(void)
{
	return atomic_load(&rig.slots[0].shared->n_tokens);
}

static void tokens_are_published_right_after_the_commit(void **state)
{
	(void)state;
	need();
	struct engine_session *s = begin_spied(false, 0);
	for (uint32_t i = 1; i < RIG_TOKENS; i++) {
		assert_int_equal(pass_run(rig.engine), 1);
		assert_int_equal(s->n_tokens, PROMPT + i);
		assert_int_equal(published(), PROMPT + i);
		assert_int_equal(at_first, PROMPT + i - 1);
		assert_true(atomic_exchange(&rig.news[0], 0) & 1);
	}
	engine_rig_end(&rig);
	check_answer(0);
	engine_rig_close(&rig);
}

static void behind_its_caller_a_pass_leaves_time_to_publish_the_last_one(void **state)
{
	(void)state;
	need();
	struct engine_session *s = begin_spied(true, 0);
	assert_int_equal(pass_run(rig.engine), 1);
	assert_int_equal(s->n_tokens, PROMPT + 1);
	assert_int_equal(published(), PROMPT);
	assert_int_equal(atomic_load(&rig.news[0]), 0);
	for (uint32_t i = 2; i < RIG_TOKENS; i++) {
		assert_int_equal(pass_run(rig.engine), 1);
		assert_int_equal(s->n_tokens, PROMPT + i);
		assert_int_equal(published(), PROMPT + i - 1);
		assert_int_equal(at_first, PROMPT + i - 2);
		assert_int_equal(at_wait, PROMPT + i - 1);
		assert_true(atomic_exchange(&rig.news[0], 0) & 1);
	}
	/* An end waits for no next pass. */
	assert_int_equal(pass_run(rig.engine), 1);
	check_answer(0);
	engine_rig_close(&rig);
}

static void behind_its_caller_what_no_pass_follows_is_published_too(void **state)
{
	(void)state;
	need();
	struct engine_session *s = begin_spied(true, 0);
	for (int i = 0; i < 3; i++)
		pass_run(rig.engine);
	assert_int_equal(published(), PROMPT + 2);
	/* Its client takes no more for now. */
	free(rig.engine->tuning);
	rig.config.ahead_max = 0;
	assert_int_equal(tuning_create(&rig.config, &rig.engine->tuning, NULL), 0);
	rig.engine->drafts.tuning = rig.engine->tuning;
	atomic_store(&s->slot->credit, 3);
	engine_changed(rig.engine, 0);
	assert_int_equal(pass_run(rig.engine), 0);
	assert_int_equal(published(), PROMPT + 3);
	engine_rig_close(&rig);
}

static void behind_its_caller_drafts_are_asked_for_behind_published_tokens(void **state)
{
	(void)state;
	need();
	begin_spied(true, 8);
	rig.drafts[0].right = expected[0];
	rig.drafts[0].n_right = 5;
	rig.drafts[0].confidence = 1;
	assert_int_equal(pass_run(rig.engine), 1);
	assert_int_equal(published(), PROMPT);
	assert_int_equal(pass_run(rig.engine), 1);
	assert_int_equal(rig.engine->pass.parts[0].out.n_accepted, 5);
	assert_int_equal(at_first, PROMPT + 1);
	assert_int_equal(published(), PROMPT + 1);
	engine_rig_end(&rig);
	check_answer(0);
	assert_true(rig.slots[0].usage.accepted >= 5 * (RIG_TOKENS / 6));
	engine_rig_close(&rig);
}

static void the_front_is_woken_once_for_all_that_end_together(void **state)
{
	(void)state;
	need();
	engine_rig_open(&rig, (const char *const[]){NULL});
	for (uint32_t i = 0; i < 5; i++)
		engine_rig_begin(&rig, i, PROMPT, 0)->page->request.max_tokens = 1;
	assert_int_equal(pass_run(rig.engine), 5);
	assert_int_equal(rig.engine->n_live, 0);
	assert_int_equal(atomic_load(&rig.news[0]), 31);
	/* For their first tokens, and for their ends. */
	assert_int_equal(rig.woken, 2);
	engine_rig_close(&rig);
}

static void settings_hold_from_the_next_pass_on_all_at_once(void **state)
{
	struct tuning *tuning;

	(void)state;
	need();
	engine_rig_open(&rig, (const char *const[]){NULL});
	for (uint32_t i = 0; i < 4; i++)
		engine_rig_begin(&rig, i, PROMPT, 0);
	assert_int_equal(engine_step(rig.engine), 4);
	/* The first of two is never in force. */
	for (int sessions = 3; sessions >= 2; sessions--) {
		rig.config.sessions_max = sessions;
		rig.config.draft_wait = sessions * 1000000;
		assert_int_equal(tuning_create(&rig.config, &tuning, NULL), 0);
		engine_tune(rig.engine, tuning);
	}
	assert_int_equal(rig.engine->tuning->sessions_max, 16);
	assert_int_equal(engine_step(rig.engine), 2);
	assert_int_equal(atomic_load(&rig.engine->tuned), 2);
	assert_int_equal(rig.engine->drafts.tuning->draft_wait, 2000000);
	engine_rig_end(&rig);
	for (uint32_t i = 0; i < 4; i++)
		check_answer(i);
	/* One that is not taken over is freed with the engine. */
	assert_int_equal(tuning_create(&rig.config, &tuning, NULL), 0);
	engine_tune(rig.engine, tuning);
	engine_rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(prompts_share_a_chunk_and_paused_sessions_sit_out),
		cmocka_unit_test(rows_go_to_the_session_whose_drafts_are_accepted),
		cmocka_unit_test(rows_go_to_the_drafts_that_the_drafter_is_sure_of),
		cmocka_unit_test(a_session_whose_draft_takes_longer_than_a_pass_sits_out),
		cmocka_unit_test(a_session_whose_draft_should_be_there_goes_on_without),
		cmocka_unit_test(where_everybody_is_late_nobody_sits_out),
		cmocka_unit_test(tokens_are_published_right_after_the_commit),
		cmocka_unit_test(behind_its_caller_a_pass_leaves_time_to_publish_the_last_one),
		cmocka_unit_test(behind_its_caller_what_no_pass_follows_is_published_too),
		cmocka_unit_test(behind_its_caller_drafts_are_asked_for_behind_published_tokens),
		cmocka_unit_test(the_front_is_woken_once_for_all_that_end_together),
		cmocka_unit_test(settings_hold_from_the_next_pass_on_all_at_once),
	};

	return cmocka_run_group_tests(tests, group_setup, NULL);
}
