#include "services/drafter/model.h"

#include "services/drafter/model_pass.h"
#include "services/drafter/model_tree.h"

#include "kernels/cpu/steps/backend_cpu.h"

#include "kernels/kernels.h"
#include "shared/model/arch/head.h"
#include "shared/model/arch/skip.h"
#include "shared/base/cpus.h"
#include "shared/base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CONTEXT_DEFAULT 8192u
#define KV_TOKENS_DEFAULT 32768u
static_assert(KV_TOKENS_DEFAULT == 32768 && LIMIT_DRAFT_SHARE + KV_PAGE_CELLS == 47,
	"the help of kv_tokens says them");

static int open_kv(struct draft_model *m, const struct drafter_config *config, struct error *err)
{
	uint32_t room = m->n_context + LIMIT_DRAFT_SHARE + KV_PAGE_CELLS;
	uint32_t tokens = (uint32_t)config->kv_tokens;
	if (tokens == 0)
		tokens = room > KV_TOKENS_DEFAULT ? room : KV_TOKENS_DEFAULT;
	if (tokens < room)
		return error_set(err, ENOEXEC,
			"kv_tokens = %u is too small for one session of %u tokens; kv_tokens takes "
			"at least %u",
			tokens, m->n_context, room);
	struct kv_layout layout = kv_layout_of(
		m->model, kv_type_auto(m->model), (tokens + KV_PAGE_CELLS - 1) / KV_PAGE_CELLS);
	layout.states.n_slots = LIMIT_RUNNING;
	m->memory_bytes = kv_bytes(&layout);
	if (m->memory_bytes == 0)
		return error_set(
			err, ENOEXEC, "kv_tokens = %u: the KV cache would be too large", tokens);
	/* Pages that are never used cost no memory. */
	m->memory = mmap(NULL, m->memory_bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m->memory == MAP_FAILED) {
		m->memory = NULL;
		return error_set(err, ENOMEM, "no memory for a draft KV cache of %zu bytes",
			m->memory_bytes);
	}
	return kv_init_memory(&m->kv, m->backend, m->memory, &layout, true, err);
}

/* Limits drafted tokens to those below n, for a draft model with more tokens than its target. */
static int limit_drafts(struct draft_model *m, uint32_t n, struct error *err)
{
	if (m->sampler.n_vocab == n)
		return 0;
	sampler_exit(&m->sampler);
	memset(&m->sampler, 0, sizeof(m->sampler));
	int r = sampler_init(&m->sampler, n);
	return r < 0 ? error_set(err, -r, "no memory for a vocabulary of %u", n) : 0;
}

static int open_tokenizer(struct draft_model *m, struct error *err)
{
	struct tokenizer *tokenizer;
	int r = tokenizer_load(m->model->gguf, &tokenizer, err);
	if (r < 0)
		return r;
	m->tokenizer = tokenizer;
	m->n_vocab = tokenizer_n_vocab(tokenizer);
	/* Rows beyond the tokenizer's vocabulary are padding: never drafted. */
	if (m->n_vocab > m->model->config.n_vocab)
		return error_set(err, EBADMSG, "%u tokens, but logits for %u", m->n_vocab,
			m->model->config.n_vocab);
	return limit_drafts(m, m->n_vocab, err);
}

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

/* Those of the target come from the expert-cache, where that has them. */
static int open_experts(struct draft_model *m, struct error *err)
{
	const struct head_experts_of *of = &m->experts_of;
	if (of->n_cached > 0)
		return head_experts_init(&m->head_experts, m->model, of, m->hints, m->backend, err);
	return experts_mapped_init(&m->experts, m->model, m->backend, err);
}

int draft_model_open_engine(
	struct draft_model *m, const struct drafter_config *config, struct error *err)
{
	const struct backend_cpu_options options = {
		.kernels = kernels_select(kernels_names[config->kernels], err),
		.threads = (uint32_t)config->threads,
		.spin_ns = config->few_cpus ? 0 : 20000,
	};
	if (!options.kernels)
		return -ENOEXEC;
	int r = backend_cpu_create(&options, &m->backend, err);
	if (r < 0)
		return r;
	say_what_is_short(config, options.kernels);
	uint32_t own = m->model->config.n_context;
	m->n_context = config->context ? (uint32_t)config->context : CONTEXT_DEFAULT;
	if (m->n_context > own)
		m->n_context = own;
	r = open_kv(m, config, err);
	if (r < 0)
		return r;
	m->n_batch = batch_of(config);
	m->batch = calloc(m->n_batch, sizeof(*m->batch));
	m->owner = calloc(m->n_batch, sizeof(struct draft_session *));
	m->cells = calloc(m->n_batch, sizeof(*m->cells));
	if (!m->batch || !m->owner || !m->cells)
		return error_set(err, ENOMEM, "no memory for a draft batch");
	r = open_experts(m, err);
	if (r < 0)
		return r;
	struct expert_source *experts =
		m->head_experts.read ? &m->head_experts.source : &m->experts.source;
	return forward_create(m->model, m->backend, &m->kv,
		m->model->config.n_experts ? experts : NULL,
		&(struct forward_limits){
			.n_batch = m->n_batch,
			.n_logits = DRAFT_MODEL_LOGITS,
			.n_context = m->n_context,
		},
		&m->forward, err);
}

static int open_parts(struct draft_model *m, const struct drafter_config *config, struct error *err)
{
	int r = model_load(config->draft, &m->model, err);
	if (r < 0)
		return r;
	r = open_tokenizer(m, err);
	if (r < 0)
		return error_prefix(err, r, "%s", config->draft);
	return draft_model_open_engine(m, config, err);
}

/* Passes the draft model's feed-forward inputs to the hints, but only for tokens that are to be
 * verified. */
static void on_layer(void *arg, uint32_t layer, uint32_t n_tokens, const uint16_t *experts,
	const float *weights, const struct rows *hidden)
{
	struct draft_model *m = arg;
	(void)experts;
	(void)weights;
	if (!hints_wanted(m->hints, HINT_DRAFT))
		return;
	struct rows row = *hidden;
	row.n = 1;
	for (uint32_t i = 0; i < n_tokens && i < m->n_in_batch; i++, row.offset += row.stride)
		if (m->batch[i].position + 1 >= m->owner[i]->n)
			hints_token(m->hints, layer, &row, m->owner[i]->uid);
	hints_flush(m->hints);
}

int draft_target_tokenizer(
	const char *path, uint64_t fingerprint, struct tokenizer **out, struct error *err)
{
	struct gguf *gguf;
	int r = gguf_open(path, &gguf, err);
	if (r < 0)
		return r;
	r = tokenizer_load(gguf, out, err);
	gguf_close(&gguf);
	if (r == 0 && tokenizer_fingerprint(*out) != fingerprint) {
		tokenizer_free(out);
		r = error_set(err, ESTALE, "the file is not the one that the verifier has");
	}
	return r;
}

int draft_model_meet(
	struct draft_model *m, const char *path, uint64_t fingerprint, struct error *err)
{
	struct tokenizer *target;
	uint32_t shared;
	if (tokenizer_fingerprint(m->tokenizer) == fingerprint)
		return limit_drafts(m, m->n_vocab, err);
	int r = draft_target_tokenizer(path, fingerprint, &target, err);
	if (r < 0)
		return r;
	uint32_t n = tokenizer_n_vocab(target);
	r = tokenizer_compare(target, m->tokenizer, &shared, err);
	tokenizer_free(&target);
	if (r == 0)
		r = limit_drafts(m, shared, err);
	if (r == 0 && n != m->n_vocab)
		log_notice("the draft model has %u tokens and its target %u; the first %u are "
			   "equal, and only these are drafted",
			m->n_vocab, n, shared);
	return r;
}

int draft_model_open(const struct drafter_config *config, struct draft_session *sessions,
	uint32_t n_sessions, struct hints *hints, struct draft_model **out, struct error *err)
{
	struct draft_model *m = calloc(1, sizeof(*m));
	if (!m)
		return error_set(err, ENOMEM, "no memory for the draft model");
	m->method = DRAFT_MODEL;
	m->sessions = sessions;
	m->n_sessions = n_sessions;
	m->hints = hints;
	int r = open_parts(m, config, err);
	if (r < 0) {
		draft_model_close(&m);
		return r;
	}
	const struct forward_hooks hooks = {.layer = on_layer, .arg = m};
	forward_set_hooks(m->forward, &hooks);
	*out = m;
	return 0;
}

void draft_model_close(struct draft_model **model)
{
	struct draft_model *m = *model;
	if (!m)
		return;
	if (m->forward)
		forward_destroy(&m->forward);
	for (uint32_t i = 0; i < DRAFT_MODEL_LOGITS; i++)
		if (m->views[i].owner != 0)
			kv_seq_forget(&m->views[i]);
	if (m->kv.meta)
		kv_exit(&m->kv);
	if (m->memory)
		munmap(m->memory, m->memory_bytes);
	sampler_exit(&m->sampler);
	tokenizer_free(&m->tokenizer);
	free(m->batch);
	free(m->owner);
	free(m->cells);
	if (m->head_experts.read)
		head_experts_exit(&m->head_experts);
	free(m->is_true);
	free(m->logits);
	if (m->method == DRAFT_LAYER_SKIP)
		model_skip_free(&m->model);
	else
		model_free(&m->model);
	model_free(&m->target);
	if (m->backend)
		m->backend->ops->destroy(m->backend);
	free(m);
	*model = NULL;
}

bool draft_model_fits(const struct draft_model *m, const struct draft_session *s)
{
	return s->n > 0 && s->n < m->n_context && s->n_vocab_needed <= m->n_vocab &&
	       (!m->head || head_states_fit(m->states, &m->wanted));
}

/* Of a head, only rows of the target's states stay. The last one is computed again. */
static void rewind_head(struct draft_model *m, struct draft_session *s)
{
	uint32_t all = s->n > s->shift ? s->n - s->shift : 0;
	uint32_t keep = s->n_true < all ? s->n_true : all > 0 ? all - 1 : 0;
	if (s->has_seq && s->seq.n > keep)
		kv_truncate(&m->kv, &s->seq, keep);
	s->n_true = keep;
}

void draft_model_rewind(struct draft_model *m, struct draft_session *s, uint32_t kept)
{
	if (m->head) {
		model_tree_settle(m, s);
		rewind_head(m, s);
		return;
	}
	if (s->has_seq && s->seq.n > kept)
		kv_truncate(&m->kv, &s->seq, kept);
	model_tree_settle(m, s);
	/* The last token's logits are gone, so the model has to read it again. */
	if (s->has_seq && s->seq.n >= s->n + s->n_chain)
		kv_truncate(&m->kv, &s->seq, s->n + s->n_chain - 1);
}

void draft_model_drop(struct draft_session *s)
{
	if (s->has_seq)
		kv_seq_exit(&s->drafter->kv, &s->seq);
	s->has_seq = false;
	s->n_chain = s->n_true = s->shift = 0;
	if (s->grown)
		s->grown->n_cells = 0;
}
