/* Drafting with the draft model: passes over the tokens that sessions lack, and a token picked at
 * the end of each. */
#include "services/drafter/foresight.h"
#include "services/drafter/head.h"
#include "services/drafter/model_pass.h"

#include "shared/model/text/breakers.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/base/rand.h"
#include "shared/spec/accept.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Sessions at K = 0 that lag by this many tokens are read up to date while no request waits. Fewer
 * tokens are cheaper to read together with the next draft. */
#define FOLLOW_LAG 32u

static uint32_t lag(const struct draft_session *s)
{
	return s->n + s->n_chain - s->shift - (s->has_seq ? s->seq.n : 0);
}

/* Evicts the session that was used longest ago, but none of this round. */
static bool evict(struct draft_model *m, const struct draft_session *keep)
{
	struct draft_session *oldest = NULL;
	for (uint32_t i = 0; i < m->n_sessions; i++) {
		struct draft_session *s = &m->sessions[i];
		if (s->has_seq && s->drafter == m && s->seq.n_pages > 0 && s != keep &&
			s->used <= m->round && (!oldest || s->used < oldest->used))
			oldest = s;
	}
	if (!oldest)
		return false;
	draft_model_drop(oldest);
	/* Read again before its next request, it would evict another, and that one the next. */
	oldest->wants = NULL;
	m->evictions++;
	return true;
}

static bool ready(struct draft_model *m, struct draft_session *s)
{
	const struct sampler_params *params = &s->request.sampling;
	if (!s->chain)
		s->chain = calloc(1, sizeof(*s->chain));
	if (!s->chain)
		return false;
	if (!s->chain->q && accept_wants_logits(params))
		s->chain->q = malloc(CHAIN_MAX * sizeof(*s->chain->q));
	if (!s->chain->q && accept_wants_logits(params))
		return false;
	if (m->head && !s->out)
		s->out = calloc(m->model->config.n_embd, sizeof(*s->out));
	if (m->head && (!s->out || head_states_begin(m->states, s) < 0))
		return false;
	if (!s->has_seq) {
		if (kv_seq_init(&s->seq, s->uid, m->n_context) < 0)
			return false;
		s->has_seq = true;
		s->drafter = m;
	}
	s->used = ++m->uses;
	return true;
}

bool model_pass_take(struct draft_model *m, struct draft_session *s, uint32_t n, uint32_t *cells)
{
	while (kv_take(&m->kv, &s->seq, n, cells) < 0)
		if (!evict(m, s))
			return false;
	return true;
}

/* Whether the answer's bytes are free of what is drafted: not where it decides about tokens, by its
 * distribution (maximal coupling) or by the experts that drafted tokens take of a budget. Only then any
 * arithmetic will do. */
static bool is_verified_to_the_bit(const struct draft_session *s)
{
	return !accept_wants_logits(&s->request.sampling) && !s->request.budgeted;
}

uint32_t model_pass_add(struct draft_model *m, struct draft_session *s, uint32_t end, bool logits)
{
	uint32_t room = m->n_batch - m->n_in_batch;
	if (!ready(m, s))
		return 0;
	if (m->head)
		head_skip(m, s);
	uint32_t there = s->seq.n + s->shift, first = m->n_in_batch;
	uint32_t n = end > there ? end - there : 0;
	if (n > room)
		n = room;
	if (n > 0 && m->head)
		n = head_add(m, s, first, n);
	if (n == 0 || !model_pass_take(m, s, n, m->cells + first))
		return 0;
	bool fast = m->fast && n > FOLLOW_LAG && is_verified_to_the_bit(s);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t position = s->seq.n + i;
		m->owner[first + i] = s;
		m->batch[first + i] = (struct batch_token){
			.seq = &s->seq,
			.token = s->tokens[position + s->shift],
			.position = position,
			.parent = i == 0 ? -1 : (int32_t)(first + i - 1),
			.logits = logits && position + s->shift + 1 == s->n + s->n_chain,
			.cell = m->cells[first + i],
			.fast = fast,
		};
	}
	m->n_in_batch += n;
	return n;
}

/* Draws from q, cut to its likeliest tokens and renormalised: the verifier needs all of q to accept
 * with the right probability (maximal coupling). */
static int32_t draw(struct draft_model *m, struct draft_session *s, uint32_t at)
{
	const struct token_prob *dist = m->sampler.dist;
	uint32_t n = m->sampler.n_dist, kept = 0;
	double sum = 0, below = 0;
	if (n > LIMIT_DRAFT_SUPPORT)
		n = LIMIT_DRAFT_SUPPORT;
	for (; kept < n && dist[kept].p > 0; kept++)
		sum += (double)dist[kept].p;
	uint32_t position = s->n + at, chosen = kept - 1;
	double u = rand_uniform(s->request.sampling.seed, RAND_DRAFT, position, 0) * sum;
	for (uint32_t i = 0; i < kept; i++) {
		s->chain->q[at][i].token = dist[i].token;
		s->chain->q[at][i].p = (float)((double)dist[i].p / sum);
		if (u >= below && u < below + (double)dist[i].p)
			chosen = i;
		below += (double)dist[i].p;
	}
	s->chain->n_support[at] = (uint8_t)kept;
	s->chain->confidence[at] = s->chain->q[at][chosen].p;
	return s->chain->q[at][chosen].token;
}

/* Without layers like the target's, the hints are what the same tokens needed before: those of the
 * chain's newest token, while the next one is drafted. */
static void hint(struct draft_model *m, const struct draft_session *s)
{
	uint32_t last = s->n + s->n_chain - 1;
	if (m->head)
		hints_head_history(m->hints, s, s->tokens, last, 1);
	else if (!model_hints(m))
		hints_history(m->hints, s, s->tokens, last, 1, NULL);
}

/* The last token of a head's chain has no state behind it. */
static void hint_last(struct draft_model *m, const struct draft_session *s)
{
	if (m->head && s->n_chain > 0)
		hints_history(m->hints, s, s->tokens, s->n + s->n_chain - 1, 1, NULL);
}

/* The tokens that the session's grammar allows at the end of its chain; NULL: all, or it is not known
 * which. The draft model's tokens are the first ones of the target's. */
static const uint64_t *allowed_at(const struct draft_session *s, uint32_t position)
{
	if (!s->constraint || position != s->n + s->n_chain)
		return NULL;
	return constraint_ahead(s->constraint, s->tokens + s->n, s->n_chain);
}

/* The input from which the token at a position is chosen: these logits, the session's tokens before
 * it, and what its grammar allows. */
static struct sampler_input input_of(const struct draft_model *m, const struct draft_session *s,
	const float *logits, uint32_t position)
{
	return (struct sampler_input){
		.logits = logits,
		.allowed = allowed_at(s, position),
		.history = s->tokens,
		.n_history = position,
		.n_prompt = s->n_prompt,
		.dry_reach =
			breakers_reach(m->tokenizer, &s->request.sampling, s->tokens, position),
	};
}

/* Picks as the verifier will, if its logits are like these. */
static int32_t choose(struct draft_model *m, const struct draft_session *s, const float *logits,
	uint32_t position, float *confidence)
{
	const struct sampler_input input = input_of(m, s, logits, position);
	struct sampler_choice choice =
		sampler_choose(&m->sampler, &s->request.sampling, &input, position, true, NULL, 0);
	*confidence = choice.p;
	return choice.token;
}

/* Picks the next token of the chain from the logits after the last one. */
static void pick(struct draft_model *m, struct draft_session *s, const float *logits)
{
	const struct sampler_params *params = &s->request.sampling;
	uint32_t at = s->n_chain, position = s->n + at;
	int32_t token;
	if (accept_wants_logits(params)) {
		const struct sampler_input input = input_of(m, s, logits, position);
		sampler_distribution(&m->sampler, params, &input);
		if (m->sampler.n_dist == 0 || !(m->sampler.dist[0].p > 0))
			return;
		token = draw(m, s, at);
	} else {
		s->chain->n_support[at] = 0;
		token = choose(m, s, logits, position, &s->chain->confidence[at]);
	}
	s->tokens[position] = token;
	s->n_chain++;
}

int model_pass_run(struct draft_model *m, model_pass_got *got)
{
	uint32_t n = m->n_in_batch;
	int r = model_forward(m, n);
	m->passes++;
	m->tokens += n;
	for (uint32_t first = 0; first < n;) {
		struct draft_session *s = m->owner[first];
		uint32_t count = 0;
		while (first + count < n && m->owner[first + count] == s)
			count++;
		uint32_t last = first + count - 1;
		if (r == 0 && m->batch[first].fast)
			m->fast_tokens += count;
		if (r == 0)
			kv_commit(&m->kv, &s->seq, m->cells + first, count, NULL, 0);
		else
			kv_commit(&m->kv, &s->seq, NULL, 0, m->cells + first, count);
		if (r == 0 && m->head)
			head_got(m, s, last);
		if (r == 0 && m->head)
			head_hint(m, s, last, s->tokens[m->batch[last].position + s->shift - 1]);
		if (r == 0 && m->batch[last].logits)
			got(m, s, model_row_logits(m, last));
		first += count;
	}
	m->n_in_batch = 0;
	if (r < 0)
		log_error("the draft model's pass failed: %s", strerror(-r));
	return r;
}

/* The length that the session's chain may reach: k tokens, within the model's context. */
static uint32_t bounded(const struct draft_model *m, const struct draft_session *s, uint32_t k)
{
	uint32_t room = m->n_context - s->n;
	if (room > s->n_context - s->n)
		room = s->n_context - s->n;
	if (k > CHAIN_MAX)
		k = CHAIN_MAX;
	return k < room ? k : room;
}

/* Adds the distributions from which the nodes were sampled; false when memory for them is
 * exhausted. */
static bool answer_supports(const struct draft_session *s, struct draft_reply *reply, uint32_t n)
{
	const struct chain *chain = s->chain;
	bool any = false;
	for (uint32_t i = 0; i < n; i++)
		any |= chain->n_support[i] > 0;
	if (!any)
		return true;
	if (draft_room_supports(reply, n) < 0)
		return false;
	reply->support = reply->support_room;
	reply->support[0] = 0;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = reply->support[i], count = chain->n_support[i];
		if (count > 0)
			memcpy(reply->choice + at, chain->q[i], count * sizeof(*reply->choice));
		reply->support[i + 1] = at + count;
	}
	return true;
}

static void answer(struct draft_session *s, const struct draft_item *item, uint32_t ahead)
{
	struct draft_reply *reply = item->reply;
	uint32_t k = draft_length(item->budget), n = s->n_chain < k ? s->n_chain : k;
	reply->method = s->drafter->method;
	if (!answer_supports(s, reply, n))
		return;
	reply->ahead = ahead < n ? ahead : n;
	for (uint32_t i = 0; i < n; i++)
		draft_append(reply, s->tokens[s->n + i], s->chain->confidence[i]);
	/* Drafts ahead as if all will be accepted: the verifier's own token, and the next draft. */
	s->chain_goal = n == k ? 2 * n + 1 : 0;
}

/* Hints for the committed token that the pass computes, and for what is drafted already. */
static void hint_what_is_there(struct draft_model *m, const struct draft_session *s)
{
	if (m->head)
		hints_head_history(m->hints, s, s->tokens, s->n - 1, 1 + s->n_chain);
	else if (!model_hints(m))
		hints_history(m->hints, s, s->tokens, s->n - 1, 1 + s->n_chain, NULL);
}

/* Whether the policy's threshold ends the chain before its last token, so that more is not worth
 * drafting. */
static bool is_cut(const struct draft_item *item)
{
	const struct draft_session *s = item->session;
	return s->chain &&
	       policy_cut_path(&item->knobs, s->chain->confidence, s->n_chain) < s->n_chain;
}

/* Drafts one token for each session that still lacks some; false when none does. */
static bool step(struct draft_model *m, struct draft_item *items, uint32_t n, bool *off)
{
	uint32_t steps_left = 0;
	for (uint32_t i = 0; i < n; i++) {
		struct draft_session *s = items[i].session;
		uint32_t k = bounded(m, s, draft_length(items[i].budget));
		if (off[i] || s->n_chain >= k || is_cut(&items[i]))
			continue;
		if (m->n_in_batch < m->n_batch &&
			model_pass_add(m, s, s->n + s->n_chain, true) == 0)
			off[i] = true;
		else if (k - s->n_chain > steps_left)
			steps_left = k - s->n_chain;
	}
	if (m->n_in_batch == 0)
		return false;
	uint64_t start_ns = clock_ns();
	hints_step(m->hints, steps_left);
	if (model_pass_run(m, pick) < 0)
		return false;
	hints_step_took(m->hints, clock_ns() - start_ns);
	for (uint32_t i = 0; i < n; i++)
		if (!off[i] && items[i].session->n_chain > 0)
			hint(m, items[i].session);
	return true;
}

/* A head drafts a chain anew if what is left of the last one is too short: its tokens would have to
 * be read again, from states of its own, and to draft costs no more. */
static void begin(struct draft_model *m, const struct draft_item *item)
{
	struct draft_session *s = item->session;
	if (s->has_seq && s->drafter != m)
		draft_model_drop(s);
	if (!m->head)
		return;
	if (s->n_chain < bounded(m, s, draft_length(item->budget)))
		s->n_chain = 0;
	if (head_states_begin(m->states, s) == 0)
		head_skip(m, s);
}

/* In each pass all sessions of the round draft a token of their chains, and then all a level of
 * their trees. A session that lacks more
 * tokens than one pass reads is left to draft_model_idle, and its draft comes from n-grams. */
static void draft_with(
	struct draft_model *m, struct draft_context *context, struct draft_item *items, uint32_t n)
{
	uint32_t ahead[LIMIT_RUNNING], n_trees = 0;
	struct draft_item *trees[LIMIT_RUNNING];
	bool off[LIMIT_RUNNING];
	m->round = m->uses;
	for (uint32_t i = 0; i < n; i++) {
		bool tree = model_tree_wanted(m, items[i].budget);
		begin(m, &items[i]);
		items[i].session->used = ++m->uses;
		ahead[i] = items[i].session->n_chain;
		off[i] = tree || lag(items[i].session) > m->n_batch;
		hint_what_is_there(m, items[i].session);
		if (tree)
			trees[n_trees++] = &items[i];
	}
	while (step(m, items, n, off))
		;
	model_tree_draft(m, trees, n_trees);
	for (uint32_t i = 0; i < n; i++) {
		struct draft_session *s = items[i].session;
		if (s->chain && s->n_chain > 0) {
			answer(s, &items[i], ahead[i]);
			hint_last(m, s);
		} else if (items[i].reply->n == 0)
			draft_ngram.draft(context, &items[i], 1);
	}
}

static void by_model(struct draft_context *context, struct draft_item *items, uint32_t n)
{
	draft_with(context->model, context, items, n);
}

static void by_skip(struct draft_context *context, struct draft_item *items, uint32_t n)
{
	draft_with(context->skip, context, items, n);
}

static void by_head(struct draft_context *context, struct draft_item *items, uint32_t n)
{
	draft_with(context->head, context, items, n);
}

const struct draft_ops draft_by_model = {.name = "model", .method = DRAFT_MODEL, .draft = by_model};
const struct draft_ops draft_by_skip = {
	.name = "layer-skip", .method = DRAFT_LAYER_SKIP, .draft = by_skip};
const struct draft_ops draft_by_eagle3 = {
	.name = "eagle3", .method = DRAFT_EAGLE3, .draft = by_head};
const struct draft_ops draft_by_mtp = {.name = "mtp", .method = DRAFT_MTP, .draft = by_head};

/* Foresight: asks for the logits behind some of the tokens that the pass reads for the session,
 * from row `first` on, to see what the model would have drafted there. Not behind the last one,
 * where a draft begins. *room: the rows of logits that the pass has left. */
static void look_at(struct draft_model *m, struct draft_session *s, uint32_t first, uint32_t *room)
{
	uint32_t end = m->n_in_batch, begin = first;
	if (m->head || end - first < 2 || !foresight_wanted(s))
		return;
	end--;
	if (end - begin > FORESIGHT_TOKENS)
		begin = end - FORESIGHT_TOKENS;
	if (end - begin > *room)
		begin = end - *room;
	for (uint32_t i = begin; i < end; i++) {
		m->batch[i].logits = m->batch[i].position + 1 >= s->n_prompt;
		*room -= m->batch[i].logits;
	}
}

/* Compares what the pass showed for foresight. n: its rows. */
static void look_back(struct draft_model *m, uint32_t n)
{
	uint32_t last = n; /* row that was compared last */
	for (uint32_t i = 0; i < n; i++) {
		struct draft_session *s = m->owner[i];
		uint32_t next = m->batch[i].position + 1;
		float confidence;
		if (!m->batch[i].logits)
			continue;
		if (last == n || m->owner[last] != s)
			foresight_begin(s);
		last = i;
		int32_t drafted = choose(m, s, forward_logits(m->forward, i), next, &confidence);
		foresight_add(s, drafted, confidence, s->tokens[next]);
	}
}

/* Whether so much of the session is to be read that no request should wait for it. */
static bool may_read(struct draft_model *m, struct draft_session *s)
{
	if (s->n_chain > 0)
		return false;
	if (s->has_seq && s->drafter != m)
		draft_model_drop(s);
	if (!m->head)
		return lag(s) > FOLLOW_LAG;
	if (head_states_begin(m->states, s) < 0)
		return false;
	head_skip(m, s);
	return head_readable(m, s) > FOLLOW_LAG;
}

bool draft_model_idle(struct draft_model *m, bool ahead)
{
	uint32_t room = DRAFT_MODEL_LOGITS;
	m->round = m->uses;
	for (uint32_t i = 0; i < m->n_sessions; i++) {
		struct draft_session *s = &m->sessions[i];
		if (s->uid == 0 || s->wants != m || !draft_model_fits(m, s) || !may_read(m, s))
			continue;
		/* The last token is left out: a draft begins from its logits. */
		uint32_t first = m->n_in_batch;
		if (first < m->n_batch && model_pass_add(m, s, s->n - 1, false) > 0)
			look_at(m, s, first, &room);
	}
	uint32_t n = m->n_in_batch;
	if (n > 0) {
		bool done = model_pass_run(m, pick) == 0;
		if (done)
			look_back(m, n);
		return done;
	}
	if (!ahead)
		return false;
	bool behind = true;
	for (uint32_t i = 0; i < m->n_sessions; i++) {
		struct draft_session *s = &m->sessions[i];
		if (s->uid == 0 || s->n_chain == 0 || s->n_chain >= bounded(m, s, s->chain_goal) ||
			!s->has_seq || s->drafter != m || m->n_in_batch == m->n_batch)
			continue;
		/* The draft that was sent is still to be verified; what is drafted behind it is for
		 * the next pass. */
		behind &= s->seq.n >= s->n + s->chain_goal / 2;
		model_pass_add(m, s, s->n + s->n_chain, true);
	}
	if (m->n_in_batch > 0 && behind)
		hints_ahead(m->hints);
	return m->n_in_batch > 0 && model_pass_run(m, pick) == 0;
}
