#include "services/verifier/state/kv_size.h"

#include "services/verifier/state/kv_memory.h"
#include "services/verifier/state/regions.h"
#include "shared/base/config.h"
#include "shared/base/decimal.h"
#include "shared/base/units.h"
#include "shared/spec/kv_plan.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* Reads "auto" (0 bytes), a share of `whole`, or bytes. A share of nothing, where there is no device, is 0
 * bytes. */
static int read_bytes(
	const char *key, const char *text, uint64_t whole, uint64_t *out, struct error *err)
{
	const char *end;
	double value = decimal_read(text, &end);
	bool is_share = strcmp(end, "%") == 0;
	double unit = is_share ? (double)whole / 100 : config_factor(CONFIG_BYTES, end);

	*out = 0;
	if (strcmp(text, "auto") == 0)
		return 0;
	if (end == text || !isfinite(value) || value <= 0 || (unit == 0 && !is_share) ||
		value * unit >= 0x1p60 || (is_share && value > 100))
		return error_set(err, EINVAL,
			"%s: %s is not allowed; it takes auto, a share such as 30%%, or bytes such "
			"as 2G",
			key, *text ? text : "\"\"");
	*out = (uint64_t)(value * unit);
	return 0;
}

int kv_size_read(const char *key, const char *text, struct error *err)
{
	uint64_t bytes;

	return read_bytes(key, text, 0, &bytes, err);
}

int kv_size_check(const struct verifier_config *config, struct error *err)
{
	int rc = kv_size_read("device_memory", config->device_memory, err);

	return rc == 0 ? kv_size_read("device_kv", config->device_kv, err) : rc;
}

int kv_size_most(const struct verifier_config *config, const struct backend *backend, uint64_t *out,
	struct error *err)
{
	struct backend_memory memory = {0};

	if (backend->device != NULL)
		backend->ops->memory(backend, &memory);
	uint64_t most = memory.bytes - memory.bytes / KV_SIZE_RESERVE_PART, wanted;
	int rc = read_bytes("device_memory", config->device_memory, memory.bytes, &wanted, err);
	*out = wanted != 0 && wanted < most ? wanted : most;
	return rc;
}

uint64_t kv_size_limit(const struct verifier_config *config, const struct backend *backend)
{
	struct error err;
	uint64_t most;

	return strcmp(config->device_memory, "auto") != 0 &&
			       kv_size_most(config, backend, &most, &err) == 0
		       ? most
		       : 0;
}

uint64_t kv_size_bytes(
	const struct verifier_config *config, const struct model *model, int64_t tokens)
{
	struct verifier_config of = *config;

	of.kv_allocated = tokens;
	const struct kv_layout layout = regions_kv_layout(&of, model);
	return kv_store_bytes(&layout);
}

uint64_t kv_size_device_bytes(const struct verifier_config *config, const struct model *model,
	const struct backend *backend, int64_t tokens)
{
	return kv_memory_device(config, backend) != 0
		       ? kv_memory_bytes(kv_size_bytes(config, model, tokens))
		       : 0;
}

/* The most tokens, in whole pages, whose store takes at most so many bytes. */
static int64_t tokens_in(
	const struct verifier_config *config, const struct model *model, uint64_t bytes)
{
	int64_t few = 0, many = KV_PAGES_MAX;

	while (many - few > 1) {
		int64_t pages = few + (many - few) / 2;
		uint64_t store = kv_size_bytes(config, model, pages * KV_PAGE_CELLS);

		/* 0: beyond the limits. */
		if (store != 0 && kv_memory_bytes(store) <= bytes)
			few = pages;
		else
			many = pages;
	}
	return few * KV_PAGE_CELLS;
}

int kv_size_tokens(const struct verifier_config *config, const struct model *model,
	const struct backend *backend, int64_t *out, struct error *err)
{
	int64_t context = config->context, least = kv_plan_tokens_min(context);
	uint64_t most, bytes = 0;
	int rc = kv_size_most(config, backend, &most, err);

	if (rc == 0)
		rc = read_bytes("device_kv", config->device_kv, most, &bytes, err);
	if (rc != 0)
		return rc;
	*out = config->kv_tokens != 0 ? config->kv_tokens
				      : kv_plan_tokens(config->sessions_allocated, context);
	if (bytes == 0 || kv_memory_device(config, backend) == 0)
		return *out >= least
			       ? 0
			       : error_set(err, EINVAL,
					 "kv_tokens: %lld is too small for one session: context "
					 "%lld needs %lld",
					 (long long)*out, (long long)context, (long long)least);
	*out = tokens_in(config, model, bytes);
	return *out >= least
		       ? 0
		       : error_set(err, EINVAL,
				 "device_kv: %s are too small for one session: context %lld needs "
				 "%s",
				 UNITS_SIZE(bytes), (long long)context,
				 UNITS_SIZE(kv_size_device_bytes(config, model, backend, least)));
}
