#include "services/verifier/front/kv_change.h"

#include "services/verifier/state/kv_memory.h"
#include "services/verifier/state/kv_size.h"
#include "services/verifier/state/resources.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/base/saturate.h"
#include "shared/base/units.h"
#include "shared/spec/device_slots.h"

#include <errno.h>
#include <string.h>

/* How long a change is waited for before its request is answered. */
#define WAIT_NS 1000000000u

static bool on_device(const struct front *front)
{
	return kv_memory_device(front->config, front->backend) != 0;
}

static uint64_t kv_of(
	const struct front *front, const struct verifier_config *config, int64_t tokens)
{
	return kv_size_device_bytes(config, front->model, front->backend, tokens);
}

/* What the verifier takes of the device beside the KV cache. */
static uint64_t others(const struct front *front)
{
	return front->needs.device - front->needs.device_kv;
}

/* The fewest slots for experts that the expert-cache keeps on the device. */
static uint64_t least_slots(const struct front *front)
{
	struct slots_geometry geometry;

	if (front->model->config.n_experts == 0 ||
		front->config->experts == VERIFIER_EXPERTS_MAPPED)
		return 0;
	slots_geometry_init(&geometry, front->model);
	return slots_min(&geometry) * device_slot_bytes(&geometry);
}

void kv_change_beside(struct front *front, const struct device_header *slots)
{
	struct kv_change *kv = &front->kv;

	kv->slots = 0;
	kv->slots_budget[0] = '\0';
	if (slots == NULL)
		return;
	kv->slots = slots->slot_bytes < UINT64_MAX >> 32 ? slots->n_slots * slots->slot_bytes
							 : UINT64_MAX;
	snprintf(kv->slots_budget, sizeof(kv->slots_budget), "%.*s", LIMIT_NAME - 1, slots->budget);
}

static int check_device(const struct front *front, const struct verifier_config *next,
	int64_t tokens, struct error *err)
{
	const struct kv_change *kv = &front->kv;
	uint64_t bytes = kv_of(front, next, tokens), least = least_slots(front), most;
	char drafter[64] = "";
	int rc = kv_size_most(next, front->backend, &most, err);

	if (rc != 0)
		return rc;
	/* Slots of a budget of their own do not give way. */
	bool fixed = kv->slots > 0 && strcmp(kv->slots_budget, "auto") != 0;
	if (fixed && kv->slots > least)
		least = kv->slots;
	uint64_t all =
		saturate_add(saturate_add(others(front), kv->drafter), saturate_add(bytes, least));
	if (kv->drafter > 0)
		snprintf(drafter, sizeof(drafter), ", %s for the draft model",
			UNITS_SIZE(kv->drafter));
	if (all <= most || (bytes <= front->needs.device_kv &&
				   strcmp(next->device_memory, front->config->device_memory) == 0))
		return 0;
	return error_set(err, ENOMEM,
		"KV cache of %lld tokens: %s of %s, of which the service may take %s "
		"(device_memory), beside %s for weights and passes%s and %s for %s%s%s",
		(long long)tokens, UNITS_SIZE(bytes), front->backend->device->name,
		UNITS_SIZE(most), UNITS_SIZE(others(front)), drafter, UNITS_SIZE(least),
		fixed ? "experts (device_budget = " : "the fewest experts",
		fixed ? kv->slots_budget : "", fixed ? ")" : "");
}

static int check_host(const struct front *front, const struct verifier_config *next, int64_t tokens,
	struct error *err)
{
	uint64_t bytes = kv_size_bytes(next, front->model, tokens);
	struct memory_limit limit;

	memory_limit_now(&limit);
	uint64_t room = saturate_add(limit.available, region_memory(&front->regions->kv));
	return bytes <= room ? 0
			     : error_set(err, ENOMEM,
				       "KV cache of %lld tokens (kv_tokens): %s, but %s has %s",
				       (long long)tokens, UNITS_SIZE(bytes), limit.where,
				       UNITS_SIZE(room));
}

static int check(const struct front *front, const struct verifier_config *next, int64_t *tokens,
	struct error *err)
{
	int rc = kv_size_tokens(next, front->model, front->backend, tokens, err);

	if (rc == 0 && front->backend->device != NULL)
		rc = check_device(front, next, *tokens, err);
	if (rc == 0 && !on_device(front) && !front->kv.under_way &&
		*tokens > front->config->kv_allocated)
		rc = check_host(front, next, *tokens, err);
	return rc;
}

int kv_change_check(
	const struct front *front, const struct verifier_config *next, struct error *err)
{
	int64_t tokens;

	return check(front, next, &tokens, err);
}

/* Whether the device has room for the KV cache in place of the one that there is. */
static bool has_room(
	const struct front *front, const struct verifier_config *config, int64_t tokens)
{
	uint64_t now = kv_of(front, config, front->config->kv_allocated),
		 bytes = kv_of(front, config, tokens), most;
	struct backend_memory memory;
	struct error err;

	if (bytes <= now)
		return true;
	front->backend->ops->memory(front->backend, &memory);
	if (kv_size_most(config, front->backend, &most, &err) != 0 || bytes > memory.free + now)
		return false;
	return saturate_add(saturate_add(others(front) + bytes, front->kv.slots),
		       front->kv.drafter) <= most;
}

/* Tells the expert-cache what the verifier takes with so many tokens in the KV cache. */
static void say(struct front *front, const struct verifier_config *config, int64_t tokens)
{
	struct slots_needs *needs = &front->needs;
	uint64_t rest = others(front);

	needs->device_kv = kv_of(front, config, tokens);
	needs->device = rest + needs->device_kv;
	needs->device_there = rest + kv_of(front, config, front->config->kv_allocated);
	needs->device_most = kv_size_limit(config, front->backend);
	links_say_needs(front);
}

/* The engine has done its part. */
static int finish(struct front *front, const struct verifier_config *config, struct error *err)
{
	const struct engine_kv_change *change = &front->kv.change;
	struct slots_needs host;

	front->kv.under_way = false;
	front->kv.wanted = 0;
	if (change->rc != 0) {
		*err = change->err;
		/* What experts have given up for it, they may have back. */
		say(front, config, front->config->kv_allocated);
	}
	/* Also where the former size had to be made again. */
	if (front->regions->kv.header == NULL)
		return change->rc;
	broker_offer(front->broker, &front->regions->kv);
	if (front->regions->kv_store_fd >= 0)
		broker_offer_fd(front->broker, KV_MEMORY, front->regions->kv_store_fd);
	if (change->rc != 0)
		return change->rc;
	front->config->kv_allocated = change->config.kv_allocated;
	regions_needs(front->regions, front->packed, front->model, &host);
	front->needs.kv = host.kv;
	say(front, config, front->config->kv_allocated);
	return 0;
}

/* A pass that takes long is not waited for: kv_change_tick finishes the change. */
static int resize(struct front *front, const struct verifier_config *config, int64_t tokens,
	struct error *err)
{
	struct engine_kv_change *change = &front->kv.change;

	change->regions = front->regions;
	change->config = *config;
	change->config.kv_allocated = tokens;
	front->kv.under_way = true;
	front->kv.wanted = tokens;
	/* What others keep is not free for the new cache. */
	broker_withdraw(front->broker, KV_REGION);
	broker_withdraw(front->broker, KV_MEMORY);
	engine_resize_kv(front->engine, change);
	return engine_resized_kv(front->engine, change, WAIT_NS) ? finish(front, config, err) : 0;
}

int kv_change_apply(struct front *front, const struct verifier_config *next, struct error *err)
{
	int64_t tokens, now = front->config->kv_allocated;
	int rc = check(front, next, &tokens, err);

	if (rc != 0)
		return rc;
	if (front->kv.under_way)
		return tokens == front->kv.wanted ? 0
						  : error_set(err, EBUSY,
							    "the KV cache is about to change to "
							    "%lld tokens: try again "
							    "when the pass that runs has ended",
							    (long long)front->kv.wanted);
	bool waited = front->kv.wanted != 0;
	front->kv.wanted = 0;
	if (tokens == now) {
		if (waited || strcmp(next->device_memory, front->config->device_memory) != 0)
			say(front, next, tokens);
		return 0;
	}
	if (has_room(front, next, tokens))
		return resize(front, next, tokens, err);
	front->kv.wanted = tokens;
	say(front, next, tokens);
	log_notice("KV cache: %lld tokens, once the expert-cache has given up room for them",
		(long long)tokens);
	return 0;
}

void kv_change_tick(struct front *front)
{
	struct error err;

	if (front->kv.under_way) {
		if (engine_resized_kv(front->engine, &front->kv.change, 0) &&
			finish(front, front->config, &err) != 0)
			log_error("%s", err.text);
		return;
	}
	int64_t wanted = front->kv.wanted;
	if (wanted == 0 || !has_room(front, front->config, wanted))
		return;
	int rc = resize(front, front->config, wanted, &err);
	if (rc == -EBUSY) {
		/* Until the answers that stand in its way have ended. */
		front->kv.wanted = wanted;
		say(front, front->config, wanted);
		log_limited(LOG_LEVEL_ERROR, "%s", err.text);
	} else if (rc != 0) {
		log_error("%s", err.text);
	}
}
