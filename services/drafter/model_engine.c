#include "services/drafter/model_engine.h"

#include "kernels/cpu/steps/backend_cpu.h"
#include "kernels/kernels.h"
#include "services/drafter/head_blocks.h"
#include "shared/base/cpus.h"
#include "shared/base/log.h"
#include "shared/base/units.h"
#include "shared/model/arch/place.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CONTEXT_DEFAULT 8192u
#define KV_TOKENS_DEFAULT 32768u
static_assert(KV_TOKENS_DEFAULT == 32768 && LIMIT_DRAFT_SHARE + KV_PAGE_CELLS == 47,
	"the help of kv_tokens says them");

/* Called once, at the start. */
static void say_what_is_short(const struct drafter_config *config, const struct kernels *kernels)
{
	const char *slow = kernels_notice(kernels, kernels_names[config->kernels]);
	struct cpus cpus;
	char text[256];
	if (slow)
		log_notice("%s", slow);
	cpus_now(&cpus);
	cpus_notice(&cpus, (uint32_t)config->threads, text, sizeof(text));
	if (text[0])
		log_notice("%s", text);
}

/* Tokens of one pass: at least one for every session, however small the configured chunk is. */
static uint32_t batch_of(const struct drafter_config *config)
{
	return (uint32_t)config->chunk > LIMIT_RUNNING ? (uint32_t)config->chunk : LIMIT_RUNNING;
}

void draft_model_tune(struct draft_model *m, const struct drafter_config *config)
{
	m->n_batch = batch_of(config);
}

static uint32_t kv_room(const struct draft_model *m)
{
	return m->n_context + LIMIT_DRAFT_SHARE + KV_PAGE_CELLS;
}

static uint32_t kv_tokens(const struct draft_model *m, const struct drafter_config *config)
{
	uint32_t room = kv_room(m);
	if (config->kv_tokens != 0)
		return (uint32_t)config->kv_tokens;
	return room > KV_TOKENS_DEFAULT ? room : KV_TOKENS_DEFAULT;
}

static struct kv_layout layout_of(const struct draft_model *m, const struct drafter_config *config)
{
	struct kv_layout layout = kv_layout_of(m->model, kv_type_auto(m->model),
		(kv_tokens(m, config) + KV_PAGE_CELLS - 1) / KV_PAGE_CELLS);
	layout.states.n_slots = LIMIT_RUNNING;
	return layout;
}

static int check_kv(
	const struct draft_model *m, const struct drafter_config *config, struct error *err)
{
	uint32_t tokens = kv_tokens(m, config), room = kv_room(m);
	if (tokens < room)
		return error_set(err, ENOEXEC,
			"kv_tokens = %u is too small for one session of %u tokens; kv_tokens takes "
			"at least %u",
			tokens, m->n_context, room);
	const struct kv_layout layout = layout_of(m, config);
	if (kv_bytes(&layout) == 0)
		return error_set(
			err, ENOEXEC, "kv_tokens = %u: the KV cache would be too large", tokens);
	return 0;
}

/* Those of the target come from the expert-cache, where that has them; on a device they are copied. */
static int open_experts(struct draft_model *m, struct error *err)
{
	const struct head_experts_of *of = &m->experts_of;
	if (of->n_cached > 0 && m->backend == m->host)
		return head_experts_init(&m->head_experts, m->model, of, m->hints, m->backend, err);
	return experts_mapped_init(&m->experts, m->model, m->backend, err);
}

/* On a back end. */
static struct forward_limits limits_of(const struct draft_model *m,
	const struct drafter_config *config, const struct backend *backend)
{
	struct drafter_config largest = *config;
	largest.chunk = config->chunk_allocated;
	return (struct forward_limits){
		.n_batch = batch_of(&largest),
		.n_logits = DRAFT_MODEL_LOGITS,
		.n_context = m->n_context,
		.fast = m->use_library && backend->device && forward_can_be_fast(m->model),
	};
}

/* Hints are made on the CPU, from rows that it sees. */
static int open_seen(struct draft_model *m, struct error *err)
{
	size_t bytes = DRAFT_MODEL_LOGITS * (size_t)m->model->config.n_embd * sizeof(float);
	int r = m->backend->ops->alloc(m->backend, bytes, BUFFER_HOST, &m->seen, err);
	return r < 0 ? r : m->host->ops->wrap(m->host, m->seen.host, bytes, &m->seen_host, err);
}

/* On m->backend. */
static int open_parts(struct draft_model *m, const struct drafter_config *config, struct error *err)
{
	const struct forward_limits limits = limits_of(m, config, m->backend);
	const struct kv_layout layout = layout_of(m, config);
	bool away = m->backend != m->host;
	int r = away ? model_place(m->model, m->backend, err) : 0;
	m->placed = away && r == 0;
	if (r == 0)
		r = draft_kv_open(m->backend, &layout, &m->kv, &m->memory, err);
	if (r == 0)
		r = open_experts(m, err);
	if (r == 0 && away)
		r = open_seen(m, err);
	if (r < 0)
		return r;
	m->fast = limits.fast;
	struct expert_source *experts =
		m->head_experts.read ? &m->head_experts.source : &m->experts.source;
	r = forward_create(m->model, m->backend, &m->kv,
		m->model->config.n_experts ? experts : NULL, &limits, &m->forward, err);
	return r == 0 && m->blocks ? head_blocks_place(m, err) : r;
}

int draft_engine_open(struct draft_model *m, const struct drafter_config *config, struct error *err)
{
	const struct backend_cpu_options options = {
		.kernels = kernels_select(kernels_names[config->kernels], err),
		.threads = (uint32_t)config->threads,
		.spin_ns = config->few_cpus ? 0 : 20000,
	};
	if (!options.kernels)
		return -ENOEXEC;
	int r = backend_cpu_create(&options, &m->host, err);
	if (r < 0)
		return r;
	say_what_is_short(config, options.kernels);
	uint32_t own = m->model->config.n_context;
	m->n_context = config->context ? (uint32_t)config->context : CONTEXT_DEFAULT;
	if (m->n_context > own)
		m->n_context = own;
	r = check_kv(m, config, err);
	if (r < 0)
		return r;
	uint32_t n = m->n_batch_max = limits_of(m, config, m->host).n_batch;
	m->n_batch = batch_of(config);
	m->batch = calloc(n, sizeof(*m->batch));
	m->owner = calloc(n, sizeof(struct draft_session *));
	m->cells = calloc(n, sizeof(*m->cells));
	if (!m->batch || !m->owner || !m->cells)
		return error_set(err, ENOMEM, "no memory for a draft batch");
	m->backend = m->host;
	return open_parts(m, config, err);
}

void draft_engine_close(struct draft_model *m)
{
	m->fast = false;
	head_blocks_leave(m);
	if (m->forward)
		forward_destroy(&m->forward);
	for (uint32_t i = 0; i < DRAFT_MODEL_LOGITS; i++) {
		if (m->views[i].owner != 0)
			kv_seq_forget(&m->views[i]);
		m->view_holds[i] = 0;
	}
	draft_kv_close(&m->kv, &m->memory);
	if (m->head_experts.read)
		head_experts_exit(&m->head_experts);
	experts_mapped_exit(&m->experts);
	if (m->seen_host.backend)
		m->host->ops->free(&m->seen_host);
	if (m->seen.backend)
		m->backend->ops->free(&m->seen);
	m->seen = m->seen_host = (struct buffer){0};
	if (m->placed)
		model_forget(m->model, m->backend);
	m->placed = false;
}

void draft_engine_add_needs(const struct model *model, const struct kv_layout *layout,
	const struct forward_limits *limits, struct backend *device,
	struct draft_engine_needs *needs)
{
	needs->weights += model_place_bytes(model) + experts_file_bytes(model);
	needs->kv += kv_store_bytes(layout);
	needs->passes += forward_bytes(model, device, limits);
}

void draft_engine_needs(struct draft_model *m, const struct drafter_config *config,
	struct backend *device, struct draft_engine_needs *out)
{
	const struct kv_layout layout = layout_of(m, config);
	const struct forward_limits limits = limits_of(m, config, device);
	*out = (struct draft_engine_needs){.kv_tokens = kv_tokens(m, config)};
	draft_engine_add_needs(m->model, &layout, &limits, device, out);
	head_blocks_needs(m, device, out);
}

/* Other programs may have taken what the expert-cache counts on. */
static int check_free(struct draft_model *m, const struct drafter_config *config,
	struct backend *device, struct error *err)
{
	struct draft_engine_needs needs;
	struct backend_memory memory;
	draft_engine_needs(m, config, device, &needs);
	device->ops->memory(device, &memory);
	if (draft_engine_bytes(&needs) <= memory.free)
		return 0;
	return error_set(err, ENOMEM, "%s has %s free of %s", device->device->name,
		UNITS_SIZE(memory.free), UNITS_SIZE(memory.bytes));
}

int draft_engine_move(struct draft_model *m, const struct drafter_config *config,
	struct backend *device, struct error *err)
{
	int r = device ? check_free(m, config, device, err) : 0;
	draft_engine_close(m);
	m->backend = device ? device : m->host;
	return r < 0 ? r : open_parts(m, config, err);
}
