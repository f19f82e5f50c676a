/* Another size for the KV cache while sessions run. */
#include "tests/verifier/engine.h"

#include "services/verifier/pass/recall.h"

enum { PROMPT = 150, PAGES_SAVED = 4 };

static void wait_for_disk(struct engine_rig *rig)
{
	while (prefix_disk_writes(rig->engine->disk.disk) == NULL)
		usleep(1000);
}

static void begin_change(struct engine_rig *rig, struct engine_kv_change *change, int64_t tokens)
{
	change->regions = &rig->regions;
	change->config = rig->config;
	change->config.kv_allocated = tokens;
	engine_resize_kv(rig->engine, change);
}

static void answer(struct engine_rig *rig, const struct engine_session *s, int32_t *tokens)
{
	engine_rig_end(rig);
	assert_int_equal(journal_n_tokens(s->page), PROMPT + RIG_TOKENS);
	memcpy(tokens, s->page->tokens + PROMPT, RIG_TOKENS * sizeof(*tokens));
}

static void a_session_that_waits_for_the_disk_survives_another_size(void **state)
{
	char dir[] = "/tmp/outrider-resize-XXXXXX", set[64], command[64];
	struct engine_kv_change change = {0};
	int32_t before[RIG_TOKENS], after[RIG_TOKENS];
	struct engine_rig *rig = malloc(sizeof(*rig));

	(void)state;
	assert_non_null(rig);
	assert_non_null(mkdtemp(dir));
	snprintf(set, sizeof(set), "prefix_dir=%s", dir);
	engine_rig_open(rig, (const char *const[]){"kv_tokens=1024", set, NULL});
	wait_for_disk(rig);
	answer(rig, engine_rig_begin(rig, 0, PROMPT, 0), before);

	/* Its pages are written before the cache is made anew. */
	begin_change(rig, &change, 2048);
	assert_int_equal(engine_step(rig->engine), 0);
	assert_true(engine_resized_kv(rig->engine, &change, 0));
	assert_int_equal(change.rc, 0);
	assert_int_equal(rig->engine->kv.layout.n_pages * KV_PAGE_CELLS, 2048);
	wait_for_disk(rig);
	assert_true(rig->engine->disk.counts.written >= PAGES_SAVED);
	assert_true(rig->engine->disk.counts.files >= PAGES_SAVED);

	/* It has asked for pages, and has none yet. */
	const struct engine_session *s = engine_rig_begin(rig, 0, PROMPT, 0);
	assert_int_equal(engine_step(rig->engine), 0);
	assert_true(s->recall.on && s->recall.n > 0 && s->seq.owner == 0);
	begin_change(rig, &change, 1024);
	(void)engine_step(rig->engine);
	assert_true(engine_resized_kv(rig->engine, &change, 0));
	assert_int_equal(change.rc, 0);
	answer(rig, s, after);
	assert_memory_equal(before, after, sizeof(before));
	assert_int_equal(rig->engine->disk.counts.failed, 0);

	engine_rig_close(rig);
	free(rig);
	snprintf(command, sizeof(command), "rm -r %s", dir);
	assert_int_equal(system(command), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_session_that_waits_for_the_disk_survives_another_size),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
