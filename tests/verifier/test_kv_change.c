/* The KV cache made anew in another size while sessions run: the engine's part, and what the front allows, lets wait and refuses. */
#include "tests/verifier/engine.h"

#include "kernels/gpu/backend.h"
#include "services/verifier/front/kv_change.h"
#include "services/verifier/state/kv_size.h"
#include "shared/ipc/broker.h"
#include "shared/ipc/peers.h"
#include "shared/spec/device_slots.h"
#include "shared/spec/kv_plan.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>

enum {
	PROMPT = 40, /* more than two pages */
	CONTEXT = 256,
	DEVICE_BYTES = 160 << 20,
};

static int32_t expected[RIG_SESSIONS][RIG_TOKENS];
static struct engine_rig rig;
static struct engine_kv_change change;
static struct front front;
static char dir[64];

static void need(void)
{
	if (access(RIG_MODEL, R_OK) != 0) {
		print_message("# no demo model\n");
		skip();
	}
}

static int group_setup(void **state)
{
	(void)state;
	setenv("OUTRIDER_SIMT_MEMORY", "160M", 1);
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

static int64_t least(void)
{
	return (kv_plan_tokens_min(CONTEXT) + KV_PAGE_CELLS - 1) / KV_PAGE_CELLS * KV_PAGE_CELLS;
}

static int64_t tokens_now(void)
{
	return (int64_t)rig.engine->kv.layout.n_pages * KV_PAGE_CELLS;
}

static void begin(void)
{
	need();
	engine_rig_open(&rig, (const char *const[]){NULL});
	for (uint32_t i = 0; i < RIG_SESSIONS; i++)
		engine_rig_begin(&rig, i, PROMPT, 0);
}

static void step(uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		engine_step(rig.engine);
}

/* To the end of all answers, which are as ever. */
static void end(void)
{
	for (int i = 0; rig.engine->n_live > 0; i++) {
		assert_true(i < 100000);
		step(1);
	}
	for (uint32_t i = 0; i < RIG_SESSIONS; i++) {
		const struct session_page *page = rig.slots[i].page;

		assert_int_equal(journal_state(page), SESSION_DONE);
		assert_int_equal(journal_n_tokens(page), PROMPT + RIG_TOKENS);
		assert_memory_equal(page->tokens + PROMPT, expected[i], sizeof(expected[i]));
	}
	engine_rig_close(&rig);
}

static int resize(int64_t tokens)
{
	change = (struct engine_kv_change){.regions = &rig.regions, .config = rig.config};
	change.config.kv_allocated = tokens;
	engine_resize_kv(rig.engine, &change);
	assert_false(engine_resized_kv(rig.engine, &change, 0));
	step(1);
	assert_true(engine_resized_kv(rig.engine, &change, 0));
	return change.rc;
}

static uint32_t sessions_with_pages(void)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < RIG_SESSIONS; i++)
		n += rig.engine->sessions[i].seq.n > 0;
	return n;
}

/* All sessions hold pages, more than there are afterwards. */
static void smaller_and_larger_in_mid_answer_change_no_token(void **state)
{
	static const int passes[] = {1, 3, 20};

	(void)state;
	for (size_t i = 0; i < sizeof(passes) / sizeof(passes[0]); i++) {
		begin();
		int64_t before = tokens_now();
		assert_true(least() < RIG_SESSIONS * (PROMPT + RIG_TOKENS) && least() < before);
		step((uint32_t)passes[i]);
		assert_true(sessions_with_pages() > 0);
		assert_int_equal(resize(least()), 0);
		assert_int_equal(tokens_now(), least());
		step(7);
		assert_true(sessions_with_pages() < RIG_SESSIONS);
		assert_int_equal(resize(before + KV_PAGE_CELLS), 0);
		assert_int_equal(tokens_now(), before + KV_PAGE_CELLS);
		step(5);
		/* The same size once more is a cache as good as another. */
		assert_int_equal(resize(before + KV_PAGE_CELLS), 0);
		end();
	}
}

static void answers_with_an_expert_budget_are_not_computed_again(void **state)
{
	struct session_page *page;

	(void)state;
	begin();
	step(4);
	int64_t before = tokens_now();
	page = rig.slots[2].page;
	assert_true(journal_n_tokens(page) > PROMPT + 1);
	page->request.budgeted = 1;
	assert_int_equal(resize(least()), -EBUSY);
	assert_memory_equal(change.err.text, "1 answer with an expert budget", 30);
	assert_int_equal(tokens_now(), before);
	assert_int_equal(sessions_with_pages(), RIG_SESSIONS);
	page->request.budgeted = 0;
	assert_int_equal(resize(least()), 0);
	end();
}

/* No file may be as large as the new cache, but one as the former was. */
static void without_memory_the_former_size_is_made_again(void **state)
{
	struct rlimit limit, before;

	(void)state;
	begin();
	step(4);
	int64_t tokens = tokens_now();
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	limit = before;
	limit.rlim_cur = rig.regions.kv.bytes + REGION_DATA;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	assert_true(resize(4 * tokens) < 0);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
	assert_true(change.err.text[0] != '\0');
	assert_int_equal(tokens_now(), tokens);
	assert_false(engine_device_lost(rig.engine, &change.err));
	end();
}

/* As above, but for the former size there is no memory either. The device is one by name: the cells lie in
 * the host's memory. */
static void without_memory_for_any_size_sessions_end_as_device_lost_says(void **state)
{
	static const char *const ways[] = {"device_lost=end", "device_lost=cpu"};
	static const struct backend_device device = {.name = "a device"};
	const struct rlimit none = {.rlim_max = RLIM_INFINITY};
	struct rlimit before;
	struct error err;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	for (size_t way = 0; way < 2; way++) {
		bool ends = way == 0;

		need();
		engine_rig_open(&rig, (const char *const[]){ways[way], "kv_memory=host", NULL});
		for (uint32_t i = 0; i < RIG_SESSIONS; i++)
			engine_rig_begin(&rig, i, PROMPT, 0);
		step(4);
		rig.backend->device = &device;
		signal(SIGXFSZ, SIG_IGN);
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
		change = (struct engine_kv_change){.regions = &rig.regions, .config = rig.config};
		change.config.kv_allocated = 4 * tokens_now();
		engine_resize_kv(rig.engine, &change);
		step(1);
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
		assert_true(engine_resized_kv(rig.engine, &change, 0) && change.rc < 0);
		assert_true(engine_device_lost(rig.engine, &err));
		assert_memory_equal(err.text, "the KV cache cannot be made again: ", 35);
		assert_int_equal(rig.engine->n_live, ends ? 0 : RIG_SESSIONS);
		for (uint32_t i = 0; i < RIG_SESSIONS; i++) {
			const struct session_page *page = rig.slots[i].page;

			assert_int_equal(journal_state(page) == SESSION_DONE, ends);
			assert_string_equal(rig.slots[i].usage.message, ends ? err.text : "");
			assert_true(journal_n_tokens(page) < PROMPT + RIG_TOKENS);
		}
		/* Nothing that comes is taken for work. */
		engine_resize_kv(rig.engine, &change);
		step(3);
		rig.backend->device = NULL;
		engine_rig_close(&rig);
	}
}

/* A front beside the engine, which this thread steps. */
static void front_open(struct backend *backend)
{
	static const struct region none = {.fd = -1};
	const struct daemon_options options = {.name = PEER_VERIFIER, .runtime_dir = dir};
	struct error err = {""};

	strcpy(dir, "/tmp/outrider-test-XXXXXX");
	assert_non_null(mkdtemp(dir));
	memset(&front, 0, sizeof(front));
	front.config = &rig.config;
	front.model = rig.model;
	front.backend = backend;
	front.regions = &rig.regions;
	front.packed = &none;
	front.engine = rig.engine;
	assert_int_equal(daemon_create(&options, &front.daemon, &err), 0);
	assert_int_equal(broker_open(front.daemon, NULL, &front.broker, &err), 0);
	rig.config.kv_allocated = tokens_now();
	front.needs.device_kv =
		kv_size_device_bytes(&rig.config, rig.model, backend, rig.config.kv_allocated);
	front.needs.device = front.needs.device_there = (32 << 20) + front.needs.device_kv;
}

static void front_end(void)
{
	broker_close(&front.broker);
	daemon_destroy(&front.daemon);
	(void)rmdir(dir);
	end();
}

static int apply(const char *const *settings, struct error *err)
{
	static struct verifier_config next;

	next = rig.config;
	*err = (struct error){""};
	for (int i = 0; settings[i] != NULL; i++)
		assert_int_equal(
			config_set(settings[i], "test", verifier_config_keys, &next, err), 0);
	int rc = kv_change_apply(&front, &next, err);
	if (rc == 0)
		rig.config = next;
	return rc;
}

static int apply_tokens(int64_t tokens, struct error *err)
{
	char text[40];

	snprintf(text, sizeof(text), "kv_tokens=%lld", (long long)tokens);
	return apply((const char *const[]){text, NULL}, err);
}

/* The engine does its part, and the front the rest. */
static void carry_out(int64_t tokens)
{
	assert_true(front.kv.under_way);
	step(1);
	kv_change_tick(&front);
	assert_false(front.kv.under_way);
	assert_int_equal(front.kv.wanted, 0);
	assert_int_equal(rig.config.kv_allocated, tokens);
	assert_int_equal(tokens_now(), tokens);
}

static void one_change_is_under_way_at_a_time(void **state)
{
	struct error err;

	(void)state;
	begin();
	front_open(rig.backend);
	step(4);
	int64_t tokens = tokens_now();
	assert_int_equal(apply_tokens(least() - KV_PAGE_CELLS, &err), -EINVAL);
	assert_int_equal(apply_tokens(tokens, &err), 0);
	assert_false(front.kv.under_way);
	/* No pass ends, so it is not waited for. */
	assert_int_equal(apply_tokens(tokens + 64, &err), 0);
	assert_true(front.kv.under_way && front.kv.wanted == tokens + 64);
	kv_change_tick(&front);
	assert_true(front.kv.under_way && rig.config.kv_allocated == tokens);
	assert_int_equal(apply_tokens(least(), &err), -EBUSY);
	assert_non_null(strstr(err.text, "is about to change"));
	assert_int_equal(apply_tokens(tokens + 64, &err), 0);
	carry_out(tokens + 64);
	step(3);
	assert_int_equal(apply_tokens(least(), &err), 0);
	carry_out(least());
	front_end();
}

static struct device_header *slots_of(uint32_t n_slots, const char *budget)
{
	static struct device_header header;

	header.n_slots = n_slots;
	header.slot_bytes = 1 << 20;
	snprintf(header.budget, sizeof(header.budget), "%s", budget);
	return &header;
}

static void little_memory(const struct backend *backend, struct backend_memory *out)
{
	(void)backend;
	*out = (struct backend_memory){DEVICE_BYTES, 1000};
}

/* Between the front's look and the engine's turn. */
static void what_others_have_filled_leaves_the_cache_as_it_is(void **state)
{
	static const struct backend_device device = {.name = "a device"};
	struct error err = {""};

	(void)state;
	begin();
	front_open(rig.backend);
	step(4);
	int64_t tokens = tokens_now();
	assert_int_equal(apply_tokens(tokens + 64, &err), 0);
	assert_true(front.kv.under_way);
	rig.backend->device = &device;
	rig.ops.memory = little_memory;
	step(1);
	assert_int_equal(front.kv.change.rc, -ENOMEM);
	assert_non_null(strstr(front.kv.change.err.text,
		"a device, which has 0.0 MiB free: it stays at 4864 tokens"));
	assert_int_equal(sessions_with_pages(), RIG_SESSIONS);
	kv_change_tick(&front);
	assert_false(front.kv.under_way);
	assert_int_equal(front.kv.wanted, 0);
	assert_int_equal(rig.config.kv_allocated, tokens);
	assert_int_equal(front.needs.device_kv,
		kv_size_device_bytes(&rig.config, rig.model, rig.backend, tokens));
	assert_int_equal(front.needs.device, (32 << 20) + front.needs.device_kv);
	assert_false(engine_device_lost(rig.engine, &err));
	rig.backend->device = NULL;
	front_end();
}

/* The cells are the CPU's, but the front takes them for cells of the device. */
static void on_a_device_a_change_waits_until_experts_give_way(void **state)
{
	const struct backend_gpu_options gpu = {.seed = 0};
	struct backend *device = NULL;
	struct error err = {""};

	(void)state;
	begin();
	assert_int_equal(backend_simt_create(&gpu, &device, &err), 0);
	front_open(device);
	step(4);
	int64_t tokens = tokens_now(), more = tokens + 1024;
	uint64_t room = DEVICE_BYTES - DEVICE_BYTES / 16 - front.needs.device;
	uint64_t now = front.needs.device_kv;
	uint32_t fill = (uint32_t)(room >> 20); /* slots of all that is left */

	/* Of a budget of their own they keep it. */
	kv_change_beside(&front, slots_of(fill, "50%"));
	assert_int_equal(apply_tokens(more, &err), -ENOMEM);
	assert_non_null(strstr(err.text, "experts (device_budget = 50%)"));
	assert_int_equal(front.kv.wanted, 0);
	/* With auto they give way, once they know. */
	kv_change_beside(&front, slots_of(fill, "auto"));
	assert_int_equal(apply_tokens(more, &err), 0);
	assert_false(front.kv.under_way);
	assert_int_equal(front.kv.wanted, more);
	uint64_t wanted = kv_size_device_bytes(&rig.config, rig.model, device, more);
	assert_int_equal(front.needs.device_kv, wanted);
	assert_int_equal(front.needs.device, (32 << 20) + wanted);
	assert_int_equal(front.needs.device_there, (32 << 20) + now);
	kv_change_tick(&front);
	assert_false(front.kv.under_way);
	/* What waits can be taken back. */
	assert_int_equal(apply_tokens(tokens, &err), 0);
	assert_int_equal(front.kv.wanted, 0);
	assert_int_equal(front.needs.device_kv, now);
	assert_int_equal(apply_tokens(more, &err), 0);
	kv_change_beside(&front, slots_of(1, "auto"));
	kv_change_tick(&front);
	carry_out(more);
	assert_int_equal(front.needs.device_kv, wanted);
	assert_int_equal(front.needs.device_there, front.needs.device);
	/* The limit of the service holds what grows, and lets shrink what is above it. */
	assert_int_equal(apply((const char *const[]){"device_memory=1%", NULL}, &err), -ENOMEM);
	assert_int_equal(apply((const char *const[]){"device_kv=99%", NULL}, &err), -ENOMEM);
	front.kv.drafter = DEVICE_BYTES;
	assert_int_equal(apply_tokens(more + 64, &err), -ENOMEM);
	assert_non_null(strstr(err.text, "for the draft model"));
	assert_int_equal(apply_tokens(least(), &err), 0);
	carry_out(least());
	front_end();
	device->ops->destroy(device);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(smaller_and_larger_in_mid_answer_change_no_token),
		cmocka_unit_test(answers_with_an_expert_budget_are_not_computed_again),
		cmocka_unit_test(without_memory_the_former_size_is_made_again),
		cmocka_unit_test(without_memory_for_any_size_sessions_end_as_device_lost_says),
		cmocka_unit_test(one_change_is_under_way_at_a_time),
		cmocka_unit_test(what_others_have_filled_leaves_the_cache_as_it_is),
		cmocka_unit_test(on_a_device_a_change_waits_until_experts_give_way),
	};

	return cmocka_run_group_tests_name("kv_change", tests, group_setup, NULL);
}
