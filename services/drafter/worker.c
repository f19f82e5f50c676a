#include "services/drafter/worker.h"

#include "services/drafter/foresight.h"
#include "services/drafter/head.h"
#include "services/drafter/worker_device.h"
#include "services/drafter/worker_mail.h"
#include "services/drafter/worker_skip.h"
#include "services/knobs/of_device.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/base/timeline.h"
#include "shared/spec/policy.h"

#include <stdlib.h>
#include <string.h>

/* How long to wait for the rest of a round. If its last request does not come, the verifier died
 * between two requests. */
#define ROUND_WAIT_NS 2000000u
#define SLEEP_NS 500000000u
#define ALIVE_NS 10000000000u
/* Routings that are learnt at once while no request waits, so that a request that arrives waits no
 * longer than that. */
#define LEARN_MAX 64u

static void count(_Atomic uint64_t *counter, uint64_t by)
{
	atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

/* The session that a request is for, with its tokens up to date; NULL when the request is stale or
 * impossible. */
static struct draft_session *follow(struct worker *w, const struct draft_request *request)
{
	if (!w->context.view || request->page >= w->view.header.n_sessions ||
		request->session == 0 || request->n_tokens == 0)
		return NULL;
	struct draft_session *s = &w->sessions[request->page];
	uint32_t kept = 0;
	/* A copy that turns out to be wrong is made once more from the page, which is what counts.
	 */
	for (int attempt = 0; attempt < 2; attempt++) {
		if (s->uid != request->session) {
			worker_end_session(w, s);
			int r = session_begin(
				s, &w->view, request->page, request->session, w->config);
			if (r < 0) {
				log_session(LOG_LEVEL_DEBUG, request->session, 0,
					"not followed: %s", strerror(-r));
				return NULL;
			}
		}
		if (session_follow(s, &w->view, request->n_tokens, &kept) == 0) {
			if (s->has_seq)
				draft_model_rewind(s->drafter, s, kept);
			grammars_follow(&w->grammars, s, &w->view);
			return s;
		}
		worker_end_session(w, s);
	}
	return NULL;
}

/* Compares what would have been drafted for a session at K = 0 (foresight.h) and reports it. The
 * verifier does not wait for the report, and most of the ring is left for the replies for which it
 * does wait. */
static void foresee(struct worker *w, struct draft_session *s, const struct draft_request *request)
{
	struct draft_reply *reply = &w->foreseen;
	s->foresight.on = request->foresight != 0;
	if (!s->foresight.on)
		foresight_forget(s);
	if (ring_length(&w->rings.replies) >= DRAFT_FORESEEN_SLOTS ||
		draft_room(reply, FORESIGHT_TOKENS) < 0)
		return;
	if (foresight_wanted(s) &&
		foresight_follow(s, &w->context, (enum draft_method)w->config->method, reply)) {
		reply->session = request->session;
		reply->sequence = request->sequence;
		reply->page = request->page;
		reply->n_tokens = request->n_tokens;
		if (draft_send(&w->rings.replies, &w->supports, reply, true))
			count(&w->counts.foreseen, 1);
	}
}

/* Limits a budget, whatever the request says, to what a draft can hold. */
static struct draft_budget bounded(struct draft_budget budget)
{
	if (budget.nodes > LIMIT_DRAFT_NODES)
		budget.nodes = LIMIT_DRAFT_NODES;
	if (budget.depth > LIMIT_DRAFT_DEPTH)
		budget.depth = LIMIT_DRAFT_DEPTH;
	return budget;
}

/* Hints, from history, for the session's newest token and n drafted ones behind it, without the first
 * `skipped` of these. */
static void hint_behind(struct worker *w, const struct draft_session *s, const int32_t *drafted,
	uint32_t n, uint32_t skipped)
{
	int32_t tokens[LIMIT_DRAFT_DEPTH + 2];
	uint32_t before = s->n > 1 ? 2 : 1;
	memcpy(tokens, s->tokens + s->n - before, before * sizeof(*tokens));
	memcpy(tokens + before, drafted, n * sizeof(*tokens));
	hints_history(&w->hints, s, tokens, before - 1 + skipped, 1 + n - skipped, NULL);
}

/* At K = 0, and where the verifier drafts from masks, the pass begins now. A hint is of use for each
 * layer that the pass has not reached. */
static void hint_at_once(
	struct worker *w, const struct draft_session *s, const struct draft_request *request)
{
	uint32_t n = request->n_own < LIMIT_MTP_DRAFT ? request->n_own : LIMIT_MTP_DRAFT;
	hint_behind(w, s, request->own, n, 0);
}

/* The model or head that drafts for the session; NULL: none does. */
static const struct draft_model *drafts_for(struct worker *w, const struct draft_session *s)
{
	if (s->request.draft_method == DRAFT_LAYER_SKIP)
		worker_skip_want(w);
	const struct draft_ops *ops =
		draft_method_for(&w->context, s, (enum draft_method)w->config->method);
	if (ops == &draft_by_skip)
		return w->skip;
	if (ops == &draft_by_model)
		return w->model;
	return draft_by_passes(ops->method) ? w->head : NULL;
}

static void add_request(struct worker *w, const struct draft_request *request)
{
	struct draft_session *s = follow(w, request);
	count(&w->counts.requests, 1);
	hints_request(&w->hints, request->iteration);
	if (s) {
		s->wants = drafts_for(w, s);
	} else {
		count(&w->counts.stale, 1);
	}
	/* Only the newest request of a page is answered: the verifier accepts no other reply, and
	 * the session has moved on. */
	uint32_t at = 0;
	while (at < w->n_items && w->asked[at].page != request->page)
		at++;
	if (at < w->n_items)
		w->items[at].session = NULL;
	bool drafts = request->budget.nodes > 0;
	if (!drafts && s) {
		hint_at_once(w, s, request);
		foresee(w, s, request);
	} else if (s) {
		foresight_forget(s);
	}
	if (!drafts || at == LIMIT_RUNNING)
		return;
	if (at == w->n_items)
		w->n_items++;
	w->asked[at] = *request;
	w->items[at] = (struct draft_item){
		.session = s,
		.budget = bounded(request->budget),
	};
}

/* Takes what the ring holds, up to the end of a round. False when it was empty. */
static bool collect(struct worker *w)
{
	struct draft_request request;
	struct doorbell *bell = &w->rings.requests.shared->bell;
	uint64_t end_ns = 0;
	bool any = false, last = false;
	for (uint32_t i = 0; i < 2 * DRAFT_REQUEST_SLOTS; i++) {
		uint32_t seen = doorbell_read(bell);
		if (ring_get(&w->rings.requests, &request, sizeof(request))) {
			any = true;
			last = request.last != 0;
			add_request(w, &request);
			continue;
		}
		uint64_t now_ns = clock_ns();
		if (!any || last || w->n_items == 0 || (end_ns && now_ns >= end_ns))
			break;
		if (end_ns == 0)
			end_ns = now_ns + ROUND_WAIT_NS;
		doorbell_wait(bell, seen, w->config->spin_ns, ROUND_WAIT_NS);
	}
	return any;
}

static void send(
	struct worker *w, const struct draft_item *item, uint32_t needs_words, uint64_t took_ns)
{
	struct draft_reply *reply = item->reply;
	if (needs_words > 0 && item->session && reply->n > 0)
		hints_head_needs(&w->hints, item->session, needs_words, reply);
	reply->draft_ns = reply->n > 0 && reply->ahead == reply->n ? 0 : took_ns;
	if (!draft_send(&w->rings.replies, &w->supports, reply, false)) {
		ring_drop(&w->rings.replies);
		return;
	}
	count(&w->counts.replies, 1);
	count(&w->counts.drafted, reply->n);
	count(&w->counts.drafted_ahead, reply->ahead);
}

/* The draft model sends its hints while it drafts, except for the last token, whose hidden states
 * it did not compute. A tree counts with its main path (draft_path). */
static void hint(struct worker *w, const struct draft_item *item)
{
	const struct draft_reply *reply = item->reply;
	int32_t drafted[LIMIT_DRAFT_DEPTH];
	int16_t path[LIMIT_DRAFT_DEPTH];
	if (!item->session)
		return;
	uint32_t length = draft_path(reply, path);
	for (uint32_t i = 0; i < length; i++)
		drafted[i] = reply->node[path[i]].token;
	bool itself = reply->method == DRAFT_MODEL && hints_wanted(&w->hints, HINT_DRAFT);
	if (draft_by_passes(reply->method) && !itself)
		return;
	hint_behind(w, item->session, drafted, length, itself ? length : 0);
}

/* Looks up where the policy wants the paths of the session's drafts to end. A request that fixes K
 * gets its K tokens. With maximal coupling paths are not cut: to keep a token or not depending on
 * which one was drawn would change q, and with it the distribution of the answer (accept.h). */
static void look_up_cut(const struct worker *w, struct draft_item *item)
{
	const struct draft_session *s = item->session;
	if (!s || s->request.k != SESSION_K_POLICY ||
		s->request.sampling.coupling == COUPLING_MAXIMAL ||
		!policy_lookup(w->page, s->page, s->uid, &item->knobs))
		item->knobs = (struct policy_session){0};
}

/* Cuts a draft at the policy's threshold. */
static void cut(const struct draft_item *item)
{
	struct draft_reply *reply = item->reply;
	policy_cut(&item->knobs, reply);
	if (reply->ahead > reply->n)
		reply->ahead = reply->n;
}

/* Answers the round. Each method is called once, for all of its items. */
static void answer(struct worker *w)
{
	uint64_t start_ns = clock_ns();
	w->hints.needs = false;
	for (uint32_t i = 0; i < w->n_items; i++) {
		const struct draft_request *request = &w->asked[i];
		struct draft_reply *reply = &w->replies[i];
		draft_reply_clear(reply);
		reply->session = request->session;
		reply->sequence = request->sequence;
		reply->page = request->page;
		reply->n_tokens = request->n_tokens;
		reply->method = DRAFT_NONE;
		w->hints.needs |= request->needs_words > 0;
		w->items[i].reply = reply;
		look_up_cut(w, &w->items[i]);
		bool room = draft_room(reply, w->items[i].budget.nodes) == 0;
		w->items[i].ops = w->items[i].session && room
					  ? draft_method_for(&w->context, w->items[i].session,
						    (enum draft_method)w->config->method)
					  : &draft_none;
	}
	for (size_t m = 0; draft_methods_all[m]; m++) {
		struct draft_item own[LIMIT_RUNNING];
		uint32_t n = 0;
		for (uint32_t i = 0; i < w->n_items; i++)
			if (w->items[i].ops == draft_methods_all[m])
				own[n++] = w->items[i];
		if (n > 0)
			draft_methods_all[m]->draft(&w->context, own, n);
	}
	uint64_t took_ns = clock_ns() - start_ns;
	uint32_t n_most = 0, n_drafted = 0;
	bool by_model = false;
	for (uint32_t i = 0; i < w->n_items; i++) {
		cut(&w->items[i]);
		n_drafted += w->replies[i].n;
	}
	if (timeline_on())
		timeline_add(&(struct timeline_span){.start_ns = start_ns,
			.end_ns = start_ns + took_ns,
			.kind = TIMELINE_DRAFT,
			.value = {w->n_items, n_drafted}});
	for (uint32_t i = 0; i < w->n_items; i++) {
		send(w, &w->items[i], w->asked[i].needs_words, took_ns);
		n_most = w->replies[i].n > n_most ? w->replies[i].n : n_most;
		by_model |= draft_by_passes(w->replies[i].method);
	}
	for (uint32_t i = 0; i < w->n_items; i++)
		hint(w, &w->items[i]);
	hints_measured(&w->hints, n_most, by_model);
	count(&w->counts.rounds, 1);
	count(&w->counts.busy_ns, took_ns);
	w->n_items = 0;
}

static bool may_run_ahead(const struct worker *w)
{
	struct policy_defaults defaults;
	if (w->config->run_ahead != CHOICE_AUTO)
		return w->config->run_ahead == CHOICE_ON;
	if (w->config->few_cpus)
		return false;
	return !w->page ||
	       !page_read(
		       &w->page->defaults_lock, &w->page->defaults, &defaults, sizeof(defaults)) ||
	       defaults.run_ahead;
}

static bool stopped(struct worker *w)
{
	pthread_mutex_lock(&w->mutex);
	bool stop = w->stop;
	pthread_mutex_unlock(&w->mutex);
	return stop;
}

/* One pass of a model or head for which no request waits. */
static bool idle(struct worker *w)
{
	bool ahead = may_run_ahead(w);
	return (w->context.head && draft_model_idle(w->head, ahead)) ||
	       (w->context.skip && draft_model_idle(w->skip, ahead)) ||
	       (w->context.model && draft_model_idle(w->model, ahead));
}

static void *run(void *arg)
{
	struct worker *w = arg;
	while (!stopped(w)) {
		atomic_store_explicit(&w->beat_ns, clock_ns(), memory_order_relaxed);
		worker_take_mail(w);
		if (!w->draft.header) {
			worker_wait_for_mail(w);
			continue;
		}
		struct doorbell *bell = &w->rings.requests.shared->bell;
		uint32_t seen = doorbell_read(bell);
		if (collect(w)) {
			if (w->n_items > 0)
				answer(w);
			worker_device_check(w);
			continue;
		}
		/* The ring is looked at between two passes, so drafting ahead delays a request by
		 * one pass at most. */
		uint64_t idle_ns = timeline_start();
		if (idle(w)) {
			timeline_end(idle_ns, TIMELINE_DRAFT_IDLE, 0, 0, 0);
			worker_device_check(w);
			continue;
		}
		if (hints_learn(&w->hints, &w->rings.routings, LEARN_MAX) > 0)
			continue;
		if (!worker_has_mail(w))
			doorbell_wait(bell, seen, w->config->spin_ns, SLEEP_NS);
	}
	return NULL;
}

int worker_init(struct worker *w, const struct drafter_config *config, void (*on_change)(void *arg),
	void *arg, struct error *err)
{
	pthread_condattr_t attributes;
	memory_clear(w, sizeof(*w));
	w->own = w->next = *config;
	w->config = &w->own;
	w->device.claim = -1;
	w->on_change = on_change;
	w->arg = arg;
	w->draft.fd = w->supports_region.fd = w->policy.fd = w->view.region.fd = w->weights.fd = -1;
	for (int i = 0; i < WORKER_REGIONS; i++)
		w->mail[i].fd = -1;
	pthread_mutex_init(&w->mutex, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&w->changed, &attributes);
	pthread_condattr_destroy(&attributes);
	atomic_store(&w->beat_ns, clock_ns());
	hints_init(&w->hints, w->config);
	grammars_init(&w->grammars);
	w->context.hints = &w->hints;
	w->context.tree = &w->tree;
	w->sessions = calloc(LIMIT_SESSIONS, sizeof(*w->sessions));
	if (w->sessions == NULL)
		return error_set(err, ENOMEM, "no memory for %d sessions", LIMIT_SESSIONS);
	head_states_init(&w->states, w->sessions, LIMIT_SESSIONS);
	if (config->draft[0] == '\0')
		return 0;
	if (!worker_device_wanted(w))
		of_device_say_idle(drafter_config_keys, &w->own, w->own.device);
	worker_device_open(w);
	w->own.draft_is_head = draft_is_head(config->draft);
	if (w->own.draft_is_head && config->method == DRAFT_MODEL)
		return error_set(err, ENOEXEC,
			"method = model needs a draft model; %s is an EAGLE-3 head: method = "
			"eagle3",
			config->draft);
	if (!w->own.draft_is_head && config->method == DRAFT_EAGLE3)
		return error_set(err, ENOEXEC,
			"method = eagle3 needs an EAGLE-3 head, and %s is none", config->draft);
	/* A head is opened when its target is known. */
	if (w->own.draft_is_head)
		return 0;
	return draft_model_open(config, w->sessions, LIMIT_SESSIONS, &w->hints, &w->model, err);
}

int worker_start(struct worker *w, struct error *err)
{
	int r = pthread_create(&w->thread, NULL, run, w);
	if (r != 0)
		return error_thread(err, r, "the draft thread cannot be started");
	w->started = true;
	return 0;
}

void worker_exit(struct worker *w)
{
	pthread_mutex_lock(&w->mutex);
	w->stop = true;
	worker_wake(w);
	pthread_mutex_unlock(&w->mutex);
	if (w->started)
		pthread_join(w->thread, NULL);
	for (uint32_t i = 0; w->sessions != NULL && i < LIMIT_SESSIONS; i++)
		worker_end_session(w, &w->sessions[i]);
	grammars_exit(&w->grammars);
	/* The target's routers compute on the draft model's back end. */
	hints_no_target(&w->hints);
	draft_model_close(&w->model);
	draft_model_close(&w->head);
	draft_model_close(&w->skip);
	worker_device_close(w);
	head_states_exit(&w->states);
	hints_exit(&w->hints);
	for (uint32_t i = 0; i < LIMIT_RUNNING; i++)
		draft_reply_exit(&w->replies[i]);
	draft_reply_exit(&w->foreseen);
	session_view_close(&w->view);
	region_close(&w->draft);
	region_close(&w->supports_region);
	region_close(&w->policy);
	region_close(&w->weights);
	for (int i = 0; i < WORKER_REGIONS; i++)
		region_close(&w->mail[i]);
	pthread_cond_destroy(&w->changed);
	pthread_mutex_destroy(&w->mutex);
	free(w->sessions);
}

bool worker_alive(void *arg)
{
	struct worker *w = arg;
	return clock_ns() - atomic_load_explicit(&w->beat_ns, memory_order_relaxed) < ALIVE_NS;
}
