/* How large the KV cache is by the settings kv_tokens, device_kv and device_memory, at their bounds. */
#include "kernels/cpu/steps/backend_cpu.h"
#include "kernels/gpu/backend.h"
#include "kernels/kernels.h"
#include "services/verifier/state/kv_memory.h"
#include "services/verifier/state/kv_size.h"
#include "shared/spec/kv_plan.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL "models/outrider-demo-moe-q8_0.gguf"
#define MEMORY (UINT64_C(160) << 20) /* of the emulated device */
enum { CONTEXT = 256 };

static struct model *model;
static struct backend *device, *cpu;

static int group_setup(void **state)
{
	const struct backend_cpu_options options = {.kernels = kernels_select("auto", NULL)};
	const struct backend_gpu_options gpu = {.seed = 0};
	struct error err = {""};

	(void)state;
	setenv("OUTRIDER_SIMT_MEMORY", "160M", 1);
	if (access(MODEL, R_OK) == 0 && model_load(MODEL, &model, &err) != 0)
		return -1;
	return backend_simt_create(&gpu, &device, &err) != 0 ||
			       backend_cpu_create(&options, &cpu, &err) != 0
		       ? -1
		       : 0;
}

static int group_teardown(void **state)
{
	(void)state;
	device->ops->destroy(device);
	cpu->ops->destroy(cpu);
	model_free(&model);
	return 0;
}

static void config_of(const char *const *settings, struct verifier_config *out)
{
	struct error err = {""};

	if (model == NULL) {
		print_message("# no demo model\n");
		skip();
	}
	config_defaults(verifier_config_keys, out);
	snprintf(out->model, sizeof(out->model), "%s", MODEL);
	out->context = CONTEXT;
	assert_int_equal(verifier_config_resolve(out, &err), 0);
	assert_int_equal(verifier_config_fit(out, model, &err), 0);
	/* Changed while it runs, which nobody else checks. */
	for (int i = 0; settings[i] != NULL; i++)
		assert_int_equal(
			config_set(settings[i], "test", verifier_config_keys, out, &err), 0);
}

/* The tokens; 0: refused, with a message that names `key`. */
static int64_t tokens(const struct backend *backend, const char *const *settings, const char *key)
{
	struct verifier_config config;
	struct error err = {""};
	int64_t out = 0;

	config_of(settings, &config);
	int rc = kv_size_tokens(&config, model, backend, &out, &err);
	if (rc == 0)
		return out;
	assert_int_equal(rc, -EINVAL);
	assert_non_null(key);
	assert_memory_equal(err.text, key, strlen(key));
	return 0;
}

/* The same with one setting, "key=value". */
static int64_t tokens_with(const struct backend *backend, const char *key, const char *value)
{
	char text[64];

	snprintf(text, sizeof(text), "%s=%s", key, value);
	return tokens(backend, (const char *const[]){text, NULL}, key);
}

static int64_t tokens_in_bytes(uint64_t bytes)
{
	char text[32];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)bytes);
	return tokens_with(device, "device_kv", text);
}

static uint64_t device_bytes(int64_t n)
{
	struct verifier_config config;

	config_of((const char *const[]){NULL}, &config);
	return kv_size_device_bytes(&config, model, device, n);
}

static void kv_tokens_has_room_for_one_session_at_least(void **state)
{
	int64_t least = kv_plan_tokens_min(CONTEXT);
	char text[32];

	(void)state;
	for (int64_t n = least - 1; n <= least + 1; n++) {
		snprintf(text, sizeof(text), "%lld", (long long)n);
		assert_int_equal(tokens_with(cpu, "kv_tokens", text), n < least ? 0 : n);
		assert_int_equal(tokens_with(device, "kv_tokens", text), n < least ? 0 : n);
	}
	assert_int_equal(tokens(cpu, (const char *const[]){NULL}, NULL),
		kv_plan_tokens(KV_PLAN_SESSIONS, CONTEXT));
}

/* A byte less, and it is a page less; and the fewest tokens are those of one session. */
static void device_kv_is_as_many_whole_pages_as_fit(void **state)
{
	int64_t least = kv_plan_tokens_min(CONTEXT), pages = 100;

	(void)state;
	assert_int_equal(
		tokens_in_bytes(device_bytes(pages * KV_PAGE_CELLS)), pages * KV_PAGE_CELLS);
	assert_int_equal(tokens_in_bytes(device_bytes(pages * KV_PAGE_CELLS) - 1),
		(pages - 1) * KV_PAGE_CELLS);
	int64_t whole = (least + KV_PAGE_CELLS - 1) / KV_PAGE_CELLS * KV_PAGE_CELLS;
	assert_int_equal(tokens_in_bytes(device_bytes(whole)), whole);
	assert_int_equal(tokens_in_bytes(device_bytes(whole) - 1), 0);
	/* It decides, not kv_tokens. */
	assert_int_equal(
		tokens(device, (const char *const[]){"kv_tokens=4096", "device_kv=50%", NULL},
			NULL),
		tokens_with(device, "device_kv", "50%"));
	/* Without a device, or with the cells in the host's memory, it means nothing. */
	assert_int_equal(
		tokens(cpu, (const char *const[]){"kv_tokens=4096", "device_kv=1", NULL}, NULL),
		4096);
	assert_int_equal(tokens(device,
				 (const char *const[]){
					 "kv_tokens=4096", "device_kv=1", "kv_memory=host", NULL},
				 NULL),
		4096);
	/* More than any cache has. */
	assert_true(tokens_with(device, "device_kv", "900000G") <=
		    (int64_t)KV_PAGES_MAX * KV_PAGE_CELLS);
}

static void a_share_is_one_of_what_the_service_may_take(void **state)
{
	static const struct {
		const char *set;
		uint64_t most, limit; /* kv_size_most, kv_size_limit */
	} cases[] = {
		{"auto", MEMORY - MEMORY / 16, 0},
		{"100%", MEMORY - MEMORY / 16, MEMORY - MEMORY / 16},
		{"50%", MEMORY / 2, MEMORY / 2},
		{"12345678", 12345678, 12345678},
		{"1G", MEMORY - MEMORY / 16, MEMORY - MEMORY / 16},
	};
	struct verifier_config config;
	struct error err = {""};
	uint64_t most;
	char text[64];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(text, sizeof(text), "device_memory=%s", cases[i].set);
		config_of((const char *const[]){text, NULL}, &config);
		assert_int_equal(kv_size_most(&config, device, &most, &err), 0);
		assert_int_equal(most, cases[i].most);
		assert_int_equal(kv_size_limit(&config, device), cases[i].limit);
		assert_int_equal(kv_size_most(&config, cpu, &most, &err), 0);
		assert_int_equal(most, 0);
		assert_int_equal(kv_size_limit(&config, cpu), 0);
	}
	int64_t half = tokens(
		device, (const char *const[]){"device_memory=50%", "device_kv=50%", NULL}, NULL);
	assert_true(half > 0 && device_bytes(half) <= MEMORY / 4 &&
		    device_bytes(half + KV_PAGE_CELLS) > MEMORY / 4);
}

static void what_is_no_size_is_refused_by_name(void **state)
{
	static const char *const wrong[] = {"", "0", "0%", "-1", "-5%", "101%", "100.1%", "much",
		"12X", "5 %", "nan", "inf", "1e30", "%", "G"};
	struct verifier_config config;
	struct error err = {""};
	char text[64];

	(void)state;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_int_equal(tokens_with(device, "device_kv", wrong[i]), 0);
		assert_int_equal(tokens_with(device, "device_memory", wrong[i]), 0);
		snprintf(text, sizeof(text), "device_memory=%s", wrong[i]);
		config_of((const char *const[]){text, NULL}, &config);
		assert_int_equal(kv_size_limit(&config, device), 0);
		/* Where the CPU computes too. */
		assert_int_equal(verifier_config_check(&config, &err), -EINVAL);
		assert_non_null(strstr(err.text, "device_memory"));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(kv_tokens_has_room_for_one_session_at_least),
		cmocka_unit_test(device_kv_is_as_many_whole_pages_as_fit),
		cmocka_unit_test(a_share_is_one_of_what_the_service_may_take),
		cmocka_unit_test(what_is_no_size_is_refused_by_name),
	};

	return cmocka_run_group_tests_name("kv_size", tests, group_setup, group_teardown);
}
