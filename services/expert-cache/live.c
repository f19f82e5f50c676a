#include "services/expert-cache/live.h"

#include "services/expert-cache/live_device.h"
#include "services/knobs/of_device.h"

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/units.h"
#include "shared/spec/profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How often a change of the available memory is looked for. */
#define LOOK_NS 2000000000ull
/* A change of the limit by less than 1 / LIMIT_PART does not count. */
#define LIMIT_PART 64

static bool chosen(int choice, bool by_itself)
{
	return choice == CHOICE_YES || (choice == CHOICE_AUTO && by_itself);
}

struct transfer_options live_options(
	struct service *service, const struct cache_config *config, uint32_t budget)
{
	bool all = budget == service->geometry.n_total;
	return (struct transfer_options){
		.preload = chosen(config->preload, all),
		/* If experts are loaded again and again, those that are used again are packed
		 * later. */
		.packs = chosen(config->pack, all),
		.packs_later = config->pack != CHOICE_NO,
		.pages_ahead = true,
		.spin_ns = (uint64_t)config->spin_ns,
		.generation = daemon_generation(service->daemon),
		.quality = &service->quality,
	};
}

static void settings_of(const struct cache_config *config, struct slots_settings *out)
{
	memset(out, 0, sizeof(*out));
	snprintf(out->budget, sizeof(out->budget), "%s", config->budget);
	snprintf(out->policy, sizeof(out->policy), "%s", config->policy);
}

/* The budget that a change asks for. auto is computed once, not with every change of something
 * else. */
static int change_budget(const struct service *service, const struct cache_config *next,
	struct settled *settled, struct error *err)
{
	memory_limit_now(&settled->limit);
	if (strcmp(next->budget, service->config.budget) != 0)
		return settle(service, next->budget, store_bytes(&service->store), settled, err);
	settled->budget.n_slots = service->budget;
	return 0;
}

static void finish(struct transfer_change *change)
{
	const struct cache_policy_ops *policy = change->policy;
	/* A change of something else has no policy, and no states of one. */
	if (policy != NULL && change->policy_state != NULL)
		policy->destroy(change->policy_state);
	if (policy != NULL && change->device_state != NULL)
		policy->destroy(change->device_state);
	live_device_free(&change->device);
	free(change->scratch);
}

static int prepare_policy(const struct service *service, const struct cache_config *next,
	struct transfer_change *change, struct error *err)
{
	uint32_t queue_max = (uint32_t)next->hint_queue_max;
	const struct cache_policy_ops *policy = cache_policy_find(next->policy);
	change->scratch = malloc(service->store.slots.n_slots * sizeof(*change->scratch));
	if (change->scratch == NULL)
		return error_set(err, ENOMEM, "policy: no memory for the order of %u slots",
			service->store.slots.n_slots);
	change->policy = policy;
	int status =
		store_policy_create(&service->store, policy, queue_max, &change->policy_state, err);
	/* Slots that are made for the change have the new policy. */
	if (status == 0 && service->device != NULL && change->device == NULL)
		status = device_policy_create(service->device, policy, queue_max, service->profile,
			&change->device_state, err);
	return status;
}

/* Allocates what a change needs, which the worker must not do. */
static int prepare(struct service *service, const struct cache_config *next,
	struct settled *settled, struct transfer_change *change, struct error *err)
{
	const struct cache_config *now = &service->config;
	*change = (struct transfer_change){0};
	int status = change_budget(service, next, settled, err);
	if (status != 0)
		return status;
	change->budget = settled->budget.n_slots;
	change->options = live_options(service, next, change->budget);
	if (service->device != NULL && strcmp(now->device_budget, next->device_budget) != 0)
		status = live_device_make(service, next, &change->device, err);
	if (status != 0 || (strcmp(now->policy, next->policy) == 0 &&
				   now->hint_queue_max == next->hint_queue_max))
		return status;
	status = prepare_policy(service, next, change, err);
	if (status != 0)
		finish(change);
	return status;
}

static void recall(struct service *service, const struct slots_settings *changed)
{
	struct cache_config next = service->config;
	struct transfer_change change;
	struct settled settled;
	struct error err;
	snprintf(next.budget, sizeof(next.budget), "%.*s", (int)sizeof(changed->budget) - 1,
		changed->budget);
	snprintf(next.policy, sizeof(next.policy), "%.*s", (int)sizeof(changed->policy) - 1,
		changed->policy);
	if (cache_config_check(&next, &err) != 0 ||
		prepare(service, &next, &settled, &change, &err) != 0) {
		log_notice("the settings that the predecessor was changed to are not kept: %s",
			err.text);
		return;
	}
	if (change.policy != NULL)
		store_switch_policy(
			&service->store, &change.policy, &change.policy_state, change.scratch);
	finish(&change);
	service->config = next;
	service->budget = change.budget;
	log_notice("keeping budget %s and policy %s, to which the predecessor was changed",
		next.budget, next.policy);
}

/* Notes the auto budget in the region, where a successor finds it. */
static void note_automatic(struct service *service, const char *budget)
{
	if (budget_is_auto(budget))
		service->store.slots.header->automatic = service->budget;
}

/* Sets service->needs to what a verifier told last, if one has; true when they changed. */
static bool learn_needs(struct service *service)
{
	struct room_needs needs = {.said = true};
	if (!slots_needs_said(service->store.slots.header, &needs.of))
		needs = service->needs;
	if (service->verifier_left)
		needs.of.there = 0;
	bool other = !room_needs_equal(&needs, &service->needs);
	service->needs = needs;
	return other;
}

/* Takes over the needs from a predecessor's region: the verifier that it served may be running on
 * unchanged. */
static void take_over_needs(struct service *service)
{
	(void)learn_needs(service);
	settle_beside(service, &service->settled);
	service->budget = service->settled.budget.n_slots;
}

/* Takes over the settings from a predecessor's region. */
static void take_over(struct service *service, const struct slots_settings *configured)
{
	const struct slots_header *header = service->store.slots.header;
	const struct slots_settings changed = header->changed;
	if (memcmp(configured, &header->configured, sizeof(*configured)) != 0)
		return;
	if (budget_is_auto(service->config.budget))
		service->budget = settle_again(service);
	if (memcmp(configured, &changed, sizeof(changed)) != 0)
		recall(service, &changed);
}

void live_begin(struct service *service)
{
	struct slots_header *header = service->store.slots.header;
	struct slots_settings configured;
	settings_of(&service->config, &configured);
	service->configured = service->config;
	if (service->store.adopted)
		take_over_needs(service);
	uint32_t first = service->budget;
	if (service->store.adopted)
		take_over(service, &configured);
	store_set_budget(&service->store, service->budget);
	note_automatic(service, service->config.budget);
	header->configured = configured;
	settings_of(&service->config, &header->changed);
	if (service->budget == first)
		settle_say(service, service->configured.budget, &service->settled);
}

/* What has changed since the budget was computed. */
enum cause { CAUSE_NONE, CAUSE_VERIFIER, CAUSE_LIMIT };

static void say_followed(
	const struct service *service, const struct settled *settled, enum cause cause)
{
	uint32_t slots = settled->budget.n_slots;
	if (cause == CAUSE_LIMIT)
		log_notice("%s has %s, had %s: %u expert slots, were %u", settled->limit.where,
			UNITS_SIZE(settled->limit.bytes), UNITS_SIZE(service->settled.limit.bytes),
			slots, service->budget);
	else
		log_notice("the verifier's KV cache takes %s: %u expert slots, were %u",
			UNITS_SIZE(service->needs.of.kv), slots, service->budget);
}

/* Adapts the budget to what the verifier has told now, and to the memory that there is; auto may
 * get another. */
static int follow(
	struct service *service, struct settled *settled, enum cause cause, struct error *err)
{
	const struct cache_config *config = &service->config;
	if (cause == CAUSE_LIMIT)
		settle_within(service, settled);
	else
		settle_beside(service, settled);
	struct transfer_change change = {.budget = settled->budget.n_slots};
	if (change.budget == service->budget)
		return 0;
	change.options = live_options(service, config, change.budget);
	int status = transfer_apply(&service->transfer, &change, err);
	if (status != 0)
		return status;
	say_followed(service, settled, cause);
	service->budget = change.budget;
	note_automatic(service, config->budget);
	return 0;
}

/* True when the limit has changed by more than a machine's own count of its memory varies. Checked
 * only from time to time, because several files are read for it. */
static bool limit_changed(struct service *service, struct memory_limit *limit)
{
	uint64_t now_ns = clock_ns(), before = service->settled.limit.bytes;
	if (now_ns - service->looked_ns < LOOK_NS)
		return false;
	service->looked_ns = now_ns;
	memory_limit_now(limit);
	uint64_t other = limit->bytes > before ? limit->bytes - before : before - limit->bytes;
	/* A limit that could not be read was not lifted. */
	return !limit->unread && limit->bytes != UINT64_MAX && other > before / LIMIT_PART;
}

void live_follow(struct service *service)
{
	const char *budget = service->config.budget;
	struct room_needs before = service->needs;
	uint32_t slots = service->budget;
	struct settled settled;
	struct error err;
	enum cause cause = CAUSE_NONE;
	/* The memory that it has now counted as free while it was away. */
	if (learn_needs(service) || (service->alone && !service->verifier_left)) {
		cause = CAUSE_VERIFIER;
		memory_limit_now(&settled.limit);
	} else if (limit_changed(service, &settled.limit)) {
		cause = CAUSE_LIMIT;
	}
	if (cause == CAUSE_NONE) {
		service->settled.room.needs = service->needs;
		return;
	}
	if (settled.limit.unread) {
		/* Try again soon. */
		service->needs = before;
		return;
	}
	if (follow(service, &settled, cause, &err) != 0) {
		/* Try again soon. */
		service->needs = before;
		log_limited(LOG_LEVEL_ERROR, "budget %s: %s", budget, err.text);
		return;
	}
	bool less = settled.limit.bytes < service->settled.limit.bytes;
	service->settled = settled;
	service->alone = service->verifier_left;
	if (cause == CAUSE_VERIFIER || less || service->budget != slots)
		settle_say(service, budget, &settled);
}

void live_end(struct service *service)
{
	struct slots_header *header = service->store.slots.header;
	header->changed = header->configured;
}

int live_check(const void *config, struct error *err)
{
	return cache_config_check(config, err);
}

/* Checks a budget for a start on this machine, when all its memory is available. */
static int fit_budget(const struct service *service, const char *text, struct error *err)
{
	struct memory_limit limit;
	struct budget budget;
	int status = budget_slots(text, &service->geometry, UINT64_MAX, &budget, err);
	if (status != 0 || budget_is_auto(text))
		return status;
	memory_limit_now(&limit);
	limit.available = limit.bytes;
	return budget_check_memory(&budget, &limit, 0, 0, UINT64_MAX, 0, err);
}

int service_profile(
	const struct service *service, const char *path, uint64_t **out, struct error *err)
{
	const struct slots_geometry *geometry = &service->geometry;
	uint32_t own = geometry->n_layers - geometry->n_drafting;
	size_t n = (size_t)own * geometry->n_experts;
	size_t all = (size_t)geometry->n_layers * geometry->n_experts;
	*out = NULL;
	int status = profile_read(path, own, geometry->n_experts, out, err);
	if (status != 0 || geometry->n_drafting == 0)
		return status;
	uint64_t *wider = realloc(*out, all * sizeof(*wider));
	if (wider == NULL) {
		free(*out);
		*out = NULL;
		return error_set(err, ENOMEM, "%s: no memory", path);
	}
	memset(wider + n, 0, (all - n) * sizeof(*wider));
	*out = wider;
	return 0;
}

static int fit_profile(const struct service *service, const char *path, struct error *err)
{
	uint64_t *profile = NULL;
	int status = service_profile(service, path, &profile, err);
	free(profile);
	return status;
}

int live_fits(void *arg, const void *next, struct error *err)
{
	const struct service *service = arg;
	const struct cache_config *config = next, *now = &service->config;
	if (strcmp(config->model, now->model) != 0)
		return file_check("model", config->model, err);
	if (service->geometry.n_total == 0)
		return 0;
	int status = 0;
	uint32_t device_slots;
	struct device_share share;
	if (strcmp(config->budget, now->budget) != 0)
		status = fit_budget(service, config->budget, err);
	if (status == 0 && strcmp(config->device_budget, now->device_budget) != 0)
		status = live_device_slots(
			service, config->device_budget, UINT64_MAX, &device_slots, &share, err);
	if (status == 0 && config->profile[0] != '\0' && strcmp(config->profile, now->profile) != 0)
		status = fit_profile(service, config->profile, err);
	return status;
}

int live_rehearse(void *arg, const void *next, struct error *err)
{
	struct service *service = arg;
	struct transfer_change change;
	struct settled settled;
	if (service->geometry.n_total == 0)
		return 0;
	int status = prepare(service, next, &settled, &change, err);
	if (status == 0)
		finish(&change);
	return status;
}

int live_apply(void *arg, const void *next, struct error *err)
{
	struct service *service = arg;
	const struct cache_config *config = next;
	struct transfer_change change;
	struct settled settled;
	if (service->geometry.n_total == 0)
		return 0;
	/* Memory that the verifier has filled meanwhile is not free. */
	live_follow(service);
	int status = prepare(service, config, &settled, &change, err);
	if (status != 0)
		return status;
	struct device *device = change.device;
	status = transfer_apply(&service->transfer, &change, err);
	if (status == 0 && device != NULL)
		live_device_use(service, device);
	finish(&change);
	live_device_more(service, config);
	if (status != 0)
		return status;
	if (change.budget != service->budget)
		log_notice("budget: %u expert slots, were %u", change.budget, service->budget);
	if (strcmp(config->policy, service->config.policy) != 0)
		log_notice("policy: %s, was %s", config->policy, service->config.policy);
	service->budget = change.budget;
	if (strcmp(config->budget, service->config.budget) != 0) {
		service->settled = settled;
		service->alone = service->verifier_left;
		note_automatic(service, config->budget);
		settle_say(service, config->budget, &settled);
	}
	return 0;
}

void live_stays(void *arg, const void *config)
{
	struct service *service = arg;
	if (service->geometry.n_total > 0)
		settings_of(config, &service->store.slots.header->changed);
	live_device_stays(service, config);
}

const char *live_idle(void *arg, const struct config_key *key)
{
	const struct service *service = arg;
	return of_device_idle(key, service->backend);
}

void live_means(void *arg, const struct config_key *key, char *out, size_t bytes)
{
	const struct service *service = arg;
	const struct room_needs *needs = &service->needs;
	if (service->device != NULL && strcmp(key->name, "device_budget") == 0 &&
		budget_is_auto(service->config.device_budget))
		snprintf(out, bytes, "%.0fM beside %.0fM of weights, passes and KV cache",
			(double)(service->device->slots.n_slots *
				 service->device->slots.slot_bytes) /
				1048576,
			(double)service->device_share.needs / 1048576);
	if (service->budget == 0 || strcmp(key->name, "budget") != 0 ||
		!budget_is_auto(service->config.budget))
		return;
	snprintf(out, bytes, "%.0fM beside %.0fM of KV cache%s",
		(double)(service->budget * service->geometry.slot_bytes) / 1048576,
		(double)needs->of.kv / 1048576, needs->said ? "" : " at its default size");
}
