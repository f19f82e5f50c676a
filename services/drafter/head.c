#include "services/drafter/head.h"
#include "services/drafter/head_blocks.h"

#include "services/drafter/model_engine.h"
#include "services/drafter/model_pass.h"

#include "shared/base/log.h"
#include "shared/model/arch/head.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool draft_is_head(const char *path)
{
	struct gguf *gguf;
	struct error err;
	if (path[0] == '\0' || gguf_open(path, &gguf, &err) < 0)
		return false;
	bool is = head_is_eagle3(gguf);
	gguf_close(&gguf);
	return is;
}

enum draft_method draft_head_wanted(const struct drafter_config *config)
{
	bool given = config->draft[0] != '\0', is = config->draft_is_head;
	if (config->method == DRAFT_MTP)
		return DRAFT_MTP;
	if (is && (config->method == DRAFT_AUTO || config->method == DRAFT_EAGLE3))
		return DRAFT_EAGLE3;
	return config->method == DRAFT_AUTO && !given ? DRAFT_MTP : DRAFT_NONE;
}

static int load_eagle3(struct draft_model *m, const char *path, const char *target_path,
	uint64_t fingerprint, struct error *err)
{
	int r = model_load(target_path, &m->target, err);
	if (r < 0)
		return r;
	if (m->target->file_fingerprint != fingerprint)
		return error_set(
			err, ESTALE, "%s is not the file that the verifier has", target_path);
	return head_load_eagle3(path, m->target, &m->model, err);
}

static int load_mtp(
	struct draft_model *m, const char *target_path, uint64_t fingerprint, struct error *err)
{
	int r = head_load_nextn(target_path, 0, &m->model, err);
	if (r == 0 && m->model->file_fingerprint != fingerprint)
		return error_set(
			err, ESTALE, "%s is not the file that the verifier has", target_path);
	return r;
}

int draft_open_target_tokenizer(
	struct draft_model *m, const struct sessions_header *header, struct error *err)
{
	const struct gguf *gguf = m->target ? m->target->gguf : m->model->gguf;
	int r = tokenizer_load(gguf, &m->tokenizer, err);
	if (r < 0)
		return r;
	if (tokenizer_fingerprint(m->tokenizer) != header->tokenizer_fingerprint)
		return error_set(err, ESTALE, "%s is not the file that the verifier has",
			header->model_path);
	m->n_vocab = tokenizer_n_vocab(m->tokenizer);
	r = sampler_init(&m->sampler, m->n_vocab);
	return r < 0 ? error_set(err, -r, "no memory for a vocabulary of %u", m->n_vocab) : 0;
}

static int allocate(struct draft_model *m, struct error *err)
{
	const struct model_config *c = &m->model->config;
	m->is_true = calloc(m->n_batch_max, sizeof(*m->is_true));
	m->route = calloc(m->n_batch_max, sizeof(*m->route));
	if (m->head->tokens)
		m->logits = malloc(c->n_vocab * sizeof(*m->logits));
	if (!m->is_true || !m->route || (m->head->tokens && !m->logits))
		return error_set(err, ENOMEM, "no memory for a draft head");
	for (uint32_t i = 0; m->logits && i < c->n_vocab; i++)
		m->logits[i] = -INFINITY;
	return 0;
}

/* A head without them drafts as well. */
static void open_routes(struct draft_model *m, const char *target_path)
{
	struct error err;
	int r = m->target ? 0 : model_load(target_path, &m->target, &err);
	if (r == 0)
		r = head_routes_init(&m->routes, m->target, m->model->config.n_embd, m->host,
			DRAFT_MODEL_LOGITS, &err);
	if (r < 0)
		log_info("what tokens of the head need comes from history: %s", err.text);
}

struct head_experts_of head_experts_of_block(const struct draft_model *m, uint32_t block)
{
	uint32_t n_layers = m->head->taps[0];
	return (struct head_experts_of){
		.model = m->wanted.model,
		.n_cached = block < m->head->n_drafting ? n_layers + m->head->n_drafting : 0,
		.layer = {(uint16_t)(n_layers + block)},
		.tells = true,
	};
}

static int open_parts(struct draft_model *m, const struct drafter_config *config,
	const struct sessions_header *header, struct error *err)
{
	uint64_t fingerprint = header->file_fingerprint;
	int r = m->method == DRAFT_EAGLE3
			? load_eagle3(m, config->draft, header->model_path, fingerprint, err)
			: load_mtp(m, header->model_path, fingerprint, err);
	if (r < 0)
		return r;
	m->head = m->model->head;
	m->wanted = (struct hidden_shape){
		.model = fingerprint,
		.n_taps = m->head->n_taps,
		.n_embd = m->head->n_state / m->head->n_taps,
	};
	memcpy(m->wanted.tap, m->head->taps, sizeof(m->wanted.tap));
	if (m->method == DRAFT_MTP)
		m->experts_of = head_experts_of_block(m, 0);
	r = draft_open_target_tokenizer(m, header, err);
	if (r == 0)
		r = draft_engine_open(m, config, err);
	if (r == 0)
		r = allocate(m, err);
	if (r == 0 && m->method == DRAFT_MTP)
		r = head_blocks_open(m, header->model_path, err);
	if (r == 0)
		open_routes(m, header->model_path);
	return r;
}

int draft_head_open(const struct drafter_config *config, const struct sessions_header *header,
	struct head_states *states, struct hints *hints, struct draft_model **out,
	struct error *err)
{
	struct draft_model *m = calloc(1, sizeof(*m));
	*out = NULL;
	if (!m)
		return error_set(err, ENOMEM, "no memory for a draft head");
	m->method = draft_head_wanted(config);
	m->sessions = states->sessions;
	m->n_sessions = states->n_sessions;
	m->hints = hints;
	m->states = states;
	int r = open_parts(m, config, header, err);
	if (r < 0) {
		draft_model_close(&m);
		return r;
	}
	*out = m;
	return 0;
}

void head_skip(struct draft_model *m, struct draft_session *s)
{
	uint32_t at = s->has_seq ? s->seq.n : 0;
	head_states_look(m->states);
	if (s->shift == 0)
		s->shift = 1;
	while (at + s->shift < s->n && at + s->shift - 1 < s->n_states &&
		!head_states_have(m->states, s, at + s->shift - 1))
		s->shift++;
}

uint32_t head_readable(const struct draft_model *m, const struct draft_session *s)
{
	(void)m;
	uint32_t next = (s->has_seq ? s->seq.n : 0) + s->shift - 1;
	uint32_t end = s->n_states + 2 < s->n ? s->n_states : s->n - 2;
	return s->n >= 2 && next < end ? end - next : 0;
}

uint32_t head_add(struct draft_model *m, struct draft_session *s, uint32_t first, uint32_t n)
{
	const struct forward_head_rows rows = forward_head_rows(m->forward);
	uint32_t width = m->head->n_state, d = m->model->config.n_embd, got = 0;
	uint32_t position = s->seq.n + s->shift - 1; /* of the state */
	if (position + 1 >= s->n) {
		memcpy(rows.states + (size_t)first * d, s->out, d * sizeof(*s->out));
		m->is_true[first] = false;
		return 1;
	}
	while (got < n && position + 1 < s->n &&
		head_states_read(
			m->states, s, position, rows.taps + (size_t)(first + got) * width)) {
		m->is_true[first + got++] = true;
		position++;
	}
	return got;
}

/* Computes the states of the batch from what head_add read. -errno. */
static int head_fuse(struct draft_model *m)
{
	for (uint32_t first = 0; first < m->n_in_batch;) {
		uint32_t n = 0;
		bool fast = m->batch[first].fast;
		while (first + n < m->n_in_batch && m->is_true[first + n] &&
			m->batch[first + n].fast == fast)
			n++;
		int r = n > 0 ? forward_head_fuse(m->forward, first, n, fast) : 0;
		if (r < 0)
			return r;
		first += n > 0 ? n : 1;
	}
	return 0;
}

void head_got(struct draft_model *m, struct draft_session *s, uint32_t row)
{
	uint32_t d = m->model->config.n_embd;
	memcpy(s->out, forward_head_rows(m->forward).out + (size_t)row * d, d * sizeof(*s->out));
	if (m->is_true[row])
		s->n_true = s->seq.n;
}

/* Takes the states behind the tokens that are drafted, or behind which drafts begin: the residual
 * stream behind the block, before a norm. */
static void on_residual(void *arg, uint32_t layer, uint32_t n_tokens, const struct rows *x)
{
	struct draft_model *m = arg;
	uint16_t chosen[DRAFT_MODEL_LOGITS] = {0};
	uint32_t n = 0;
	if (layer < m->model->config.n_layers)
		return;
	for (uint32_t i = 0; i < n_tokens && i < m->n_in_batch && n < DRAFT_MODEL_LOGITS; i++)
		if (m->batch[i].logits)
			chosen[n++] = (uint16_t)i;
	bool away = m->backend != m->host;
	if (away && !model_hints_fetch(m, x, chosen, n))
		return;
	head_routes_begin(&m->routes);
	for (uint32_t i = 0; i < n; i++) {
		const void *state = away ? m->seen_host.host + i * x->stride
					 : x->buffer->host + x->offset + chosen[i] * x->stride;
		m->route[chosen[i]] = (int16_t)head_routes_add(&m->routes, state);
	}
	head_routes_run(&m->routes);
}

/* Whether the pass says what tokens need. */
static void prepare_routes(struct draft_model *m)
{
	const struct forward_hooks hooks = {.residual = on_residual, .arg = m};
	bool wanted = hints_head_pass(m->hints, m->routes.on);
	for (uint32_t i = 0; i < m->n_in_batch; i++)
		m->route[i] = -1;
	forward_set_hooks(m->forward, wanted ? &hooks : NULL);
}

void head_hint(struct draft_model *m, struct draft_session *s, uint32_t row, int32_t before)
{
	if (m->route[row] >= 0)
		hints_head_token(m->hints, s, m->batch[row].position + s->shift, before,
			m->batch[row].token, head_routes_of(&m->routes, m->route[row]));
}

static int run_soundly(struct draft_model *m, uint32_t n)
{
	return m->head_experts.read ? head_experts_run(&m->head_experts, m->forward, m->batch, n)
				    : forward_run(m->forward, m->batch, n);
}

int model_forward(struct draft_model *m, uint32_t n)
{
	int r = m->head ? head_fuse(m) : 0;
	if (m->head)
		prepare_routes(m);
	else
		model_hints_prepare(m);
	bool several = head_has_blocks(m);
	if (r == 0 && (!several || head_blocks_need_first(m, n)))
		r = run_soundly(m, n);
	return r == 0 && several ? head_blocks_run(m, n) : r;
}

const float *model_row_logits(struct draft_model *m, uint32_t row)
{
	if (head_has_blocks(m))
		return head_blocks_logits(m, row);
	return head_logits(m, forward_logits(m->forward, row));
}

const float *head_logits(struct draft_model *m, const float *logits)
{
	if (!m->head || !m->logits)
		return logits;
	for (uint32_t i = 0; i < m->model->output.rows; i++)
		m->logits[m->head->tokens[i]] = logits[i];
	return m->logits;
}
