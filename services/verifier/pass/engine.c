#include "services/verifier/pass/engine.h"

#include "services/verifier/state/pass_limits.h"
#include "shared/base/round.h"
#include "shared/base/clock.h"
#include "shared/base/counter.h"
#include "shared/base/log.h"
#include "shared/model/kv/kv_prefix.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	COMMAND_SLOTS = 1024, /* more than all sessions submitted at once, and the regions */
	COMMAND_BYTES = 64,
};
#define IDLE_NS 1000000000u /* an idle engine looks around at this interval */
#define WAITING_NS 50000000u /* and at this one while sessions wait, for their deadlines */

enum command_kind {
	COMMAND_SUBMIT,
	COMMAND_EXPERTS,
	COMMAND_DEVICE, /* region, and the descriptor `index` */
	COMMAND_POLICY,
	COMMAND_HIDDEN,
	COMMAND_STOP
};
struct command {
	uint32_t kind, index;
	struct region region, hints;
};
static_assert(sizeof(struct command) <= COMMAND_BYTES, "a command is one cache line");
static_assert(COMMAND_SLOTS >= LIMIT_SESSIONS + 8, "submitting never finds the ring full");

static struct doorbell *bell_of(struct engine *engine)
{
	return &engine->commands_in.shared->bell;
}

static void command(struct engine *engine, const struct command *command)
{
	if (!ring_put(&engine->commands_in, command, sizeof(*command)))
		log_error("the engine's command ring is full: command %u is lost", command->kind);
}

static int create_experts(struct engine *engine, struct error *err)
{
	const struct engine_options *o = &engine->o;

	if (o->model->config.n_experts == 0)
		return 0;
	if (o->config->experts == VERIFIER_EXPERTS_MAPPED) {
		engine->experts = &engine->mapped.source;
		return experts_mapped_init(&engine->mapped, o->model, o->backend, err);
	}
	struct experts_cached_options options = {
		.backend = o->backend,
		.host = o->host,
		.spin_ns = engine->tuning->expert_spin,
		.patience_ns = engine->tuning->expert_patience,
		.generation = o->generation,
		.cache_alive = o->cache_alive,
		.arg = o->arg,
	};
	int rc = experts_cached_create(o->model, &options, &engine->cached, err);
	if (rc != 0)
		return rc;
	experts_cached_hybrid(engine->cached, engine->tuning->hybrid);
	engine->experts = experts_cached_source(engine->cached);
	return 0;
}

static int allocate(struct engine *engine, struct error *err)
{
	const struct engine_options *o = &engine->o;

	struct pass *pass = &engine->pass;
	pass->max = pass_limits(engine->tuning->sessions_max, engine->tuning->prefill_chunk,
		o->config->context, o->config->budget_oracle, o->config->fast);
	pass->max.adapter = o->adapter;
	pass->parts = calloc(LIMIT_SESSIONS, sizeof(*pass->parts));
	pass->batch = calloc(pass->max.n_batch, sizeof(*pass->batch));
	pass->cells = calloc(pass->max.n_batch, sizeof(*pass->cells));
	pass->picks = calloc(pass->max.n_picks, sizeof(*pass->picks));
	pass->budgets = calloc(pass->max.n_budgets, sizeof(*pass->budgets));
	pass->picked = calloc(pass->max.n_picks, sizeof(*pass->picked));
	pass->likely =
		calloc((size_t)pass->max.n_picks * LIMIT_TOP_LOGPROBS, sizeof(*pass->likely));
	size_t bytes = ring_bytes(COMMAND_BYTES, COMMAND_SLOTS);
	engine->commands_mem = aligned_alloc(CACHE_LINE, round_lines(bytes));
	if (pass->parts == NULL || pass->batch == NULL || pass->cells == NULL ||
		pass->picks == NULL || pass->picked == NULL || pass->likely == NULL ||
		pass->budgets == NULL || engine->commands_mem == NULL ||
		sampler_init(&engine->sampler, o->model->config.n_vocab) != 0)
		return error_set(err, ENOMEM,
			"no memory for a batch of %u tokens and a vocabulary of %u",
			pass->max.n_batch, o->model->config.n_vocab);
	memset(engine->commands_mem, 0, bytes);
	ring_format(engine->commands_mem, COMMAND_BYTES, COMMAND_SLOTS);
	int rc = ring_attach(&engine->commands_in, engine->commands_mem, bytes, COMMAND_BYTES, err);
	if (rc == 0)
		rc = ring_attach(
			&engine->commands_out, engine->commands_mem, bytes, COMMAND_BYTES, err);
	return rc;
}

int engine_create_kv(struct engine *engine, struct error *err)
{
	const struct engine_options *o = &engine->o;
	const struct regions *regions = o->regions;
	const struct kv_layout *layout = &regions->kv_layout;
	bool fresh = !regions->kv_recovered;
	bool away = o->kv_store != NULL && o->kv_store->backend != NULL;
	int rc =
		away ? kv_init(&engine->kv, regions->kv_mem, o->kv_store, layout, fresh, err)
		     : kv_init_memory(&engine->kv, o->backend, regions->kv_mem, layout, fresh, err);

	if (rc != 0)
		return rc;
	kv_check(&engine->kv);
	rc = snapshots_sums_apart(&engine->kv, err);
	if (rc == 0 && kv_prefix_init(&engine->kv) != 0)
		rc = error_set(err, ENOMEM, "no memory to look up prefixes of sessions");
	if (rc != 0)
		return rc;
	kv_keep_max(&engine->kv, engine->tuning->prefix_pages);
	return recall_open(engine, err);
}

int engine_create(const struct engine_options *options, struct engine **out, struct error *err)
{
	const struct regions *regions = options->regions;
	struct engine *engine = calloc(1, sizeof(*engine));

	if (engine == NULL)
		return error_set(
			err, ENOMEM, "no memory for the engine (%zu bytes)", sizeof(*engine));
	engine->o = *options;
	engine->start_rc = 1;
	pthread_mutex_init(&engine->lock, NULL);
	pthread_cond_init(&engine->ready, NULL);
	hidden_feed_init(&engine->hidden, options->backend);
	atomic_store(&engine->idle, true);
	int rc = tuning_create(options->config, &engine->tuning, err);
	if (rc == 0)
		targets_begin(&engine->targets, &engine->tuning->classes);
	if (rc == 0)
		rc = allocate(engine, err);
	if (rc == 0)
		rc = engine_create_kv(engine, err);
	if (rc == 0)
		rc = create_experts(engine, err);
	if (rc == 0)
		rc = drafts_init(&engine->drafts, region_payload(&regions->draft), draft_bytes(),
			region_payload(&regions->supports), options->generation,
			options->model->config.n_vocab, engine->tuning, err);
	if (rc == 0)
		rc = gate_hints_init(&engine->gates, options->model, options->backend,
			engine->cached, options->config->gate_hints, err);
	if (rc == 0)
		rc = routing_feed_init(&engine->feed, options->model,
			&engine->drafts.rings.routings, engine->pass.max.n_batch, err);
	if (rc == 0)
		rc = select_init(&engine->select, options->model, engine->feed.n_moe, err);
	*out = engine;
	if (rc != 0)
		engine_destroy(out);
	return rc;
}

/* Pages of exact tokens behind a fast beginning. */
#define BEHIND_FAST UINT64_C(0x6661737420656e64)

static void set_fast(const struct engine *engine, struct engine_session *s)
{
	uint64_t domain = s->page->request.prefix_domain;
	bool fast = engine->o.config->fast;

	s->n_fast = fast ? forward_fast_tokens(s->page->n_prompt) : 0;
	s->domains = (struct kv_domains){domain, fast ? domain ^ BEHIND_FAST : domain, s->n_fast};
}

/* Prepares a session: its text and end from its tokens, and its KV pages if they are there. */
static void enter(struct engine *engine, uint32_t index)
{
	struct slot *slot = &engine->o.slots[index];
	struct engine_session *s = &engine->sessions[index];

	memset(s, 0, sizeof(*s));
	s->index = index;
	s->slot = slot;
	s->page = slot->page;
	s->uid = atomic_load_explicit(&s->page->uid, memory_order_acquire);
	s->end_before = (enum session_end)atomic_load_explicit(&s->page->end, memory_order_relaxed);
	s->live = true;
	s->n_tokens = journal_n_tokens(s->page);
	set_fast(engine, s);
	s->last_snapshot = KV_NONE;
	s->sched.index = index;
	engine->order_stale = true;
	atomic_fetch_or_explicit(
		&engine->changed[index / 64], UINT64_C(1) << index % 64, memory_order_relaxed);
	engine->live[engine->n_live++] = &s->sched;
}

static void recover_kv(struct engine *engine, struct engine_session *s, uint32_t limit)
{
	kv_adopt(&engine->kv, &s->seq, limit);
	kv_prefix_enter(&engine->kv, &s->seq, &s->domains, s->page->tokens);
	/* It may find a snapshot when it starts. */
	if (s->seq.n == 0)
		kv_seq_exit(&engine->kv, &s->seq);
}

bool engine_lost_budget(const struct engine_session *s)
{
	return s->page->request.budgeted && s->end_before == SESSION_END_NONE &&
	       session_n_out(s, s->n_tokens) > 1 && s->seq.n == 0;
}

void engine_end_lost(struct engine *engine, struct engine_session *s)
{
	char *message = s->slot->usage.message, experts[LAYER_LIMITS_TEXT];

	snprintf(message, sizeof(s->slot->usage.message),
		"the answer has an expert budget (budget_experts %.64s), and what it was computed "
		"from is lost: it cannot go on after %u tokens",
		layer_limits_text(
			s->page->request.budget_experts, engine->o.model->config.n_layers, experts),
		session_n_out(s, s->n_tokens));
	log_session(LOG_LEVEL_NOTICE, s->uid, engine->iteration, "%s", message);
	engine_finish(engine, s, SESSION_END_ERROR);
}

/* Whether a session that the engine just got has ended: by its tokens, or because it cannot go on. */
static bool ends_at_once(struct engine *engine, struct engine_session *s, enum session_end end)
{
	if (end != SESSION_END_NONE)
		engine_finish(engine, s, end);
	else if (engine_lost_budget(s))
		engine_end_lost(engine, s);
	else
		return false;
	engine_tidy(engine);
	return true;
}

void engine_recover(struct engine *engine, uint32_t index, bool kv_kept)
{
	struct engine_session *s = &engine->sessions[index];

	enter(engine, index);
	/* Either it was written down, or the process that reached it died before it could. */
	enum session_end end = s->end_before;
	if (end == SESSION_END_NONE)
		end = pass_replay_text(engine, s);
	uint32_t n_tokens = journal_n_tokens(s->page);
	uint32_t limit = slot_records(s->slot) ? s->page->n_prompt - 1 : n_tokens - 1;

	/* The records that the client wants were lost with the predecessor, so those positions are
	 * computed again. */
	if (kv_kept && end == SESSION_END_NONE && !engine_lost_budget(s) &&
		kv_seq_init(&s->seq, s->uid, (uint32_t)engine->o.config->context) == 0)
		recover_kv(engine, s, limit);
	log_session(LOG_LEVEL_INFO, s->uid, 0,
		"taken over with %u tokens, %u of them in the KV cache", n_tokens, s->seq.n);
	(void)ends_at_once(engine, s, end);
}

void engine_recovered(struct engine *engine)
{
	kv_reclaim(&engine->kv);
}

uint64_t engine_kept_tokens(struct engine *engine)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < engine->n_live; i++)
		n += engine_live(engine, i)->seq.n;
	return n;
}

void engine_lose_kv(struct engine *engine, struct engine_session *s)
{
	if (s->seq.owner != 0)
		kv_seq_exit(&engine->kv, &s->seq);
	recall_end(engine, s);
	/* The next sweep looks at it: a session with an expert budget cannot go on. */
	atomic_fetch_or_explicit(&engine->changed[s->index / 64], UINT64_C(1) << s->index % 64,
		memory_order_relaxed);
	s->waits = false;
	s->sched.n_pages = s->sched.n_kv = 0;
}

void engine_finish(struct engine *engine, struct engine_session *s, enum session_end end)
{
	static const char *const names[] = {
		"none", "eos", "stop", "length", "cancelled", "deadline", "error"};

	pass_publish(engine);
	recall_end(engine, s);
	if (s->seq.owner != 0)
		kv_seq_exit(&engine->kv, &s->seq);
	s->live = false;
	engine->n_ended++;
	log_session(LOG_LEVEL_INFO, s->uid, engine->iteration, "ended by %s with %u tokens",
		names[end], session_n_out(s, s->n_tokens));
	journal_finish(s->page, s->slot->shared, end);
	engine_mark(engine, s);
}

void engine_yield(struct engine *engine, struct engine_session *s)
{
	pass_publish(engine);
	recall_end(engine, s);
	if (s->seq.owner != 0)
		kv_seq_exit(&engine->kv, &s->seq);
	s->live = false;
	engine->n_ended++;
	log_session(LOG_LEVEL_INFO, s->uid, engine->iteration, "gives its place up with %u tokens",
		session_n_out(s, s->n_tokens));
	journal_enter(s->page, s->slot->shared, SESSION_QUEUED);
	/* Pairs with the front's acquire: nothing of the session is written after it. */
	atomic_store_explicit(&s->slot->yielded, true, memory_order_release);
	engine_mark(engine, s);
}

void engine_tidy(struct engine *engine)
{
	uint32_t kept = 0;

	if (engine->n_ended == 0)
		return;
	engine->n_ended = 0;
	engine->order_stale = true;
	for (uint32_t i = 0; i < engine->n_live; i++)
		if (engine_live(engine, i)->live)
			engine->live[kept++] = engine->live[i];
	engine->n_live = kept;
	engine_wake(engine, true);
}

void engine_wake(struct engine *engine, bool now)
{
	uint64_t now_ns = clock_ns();

	/* On a small machine the front runs on a CPU that the pass needs, so it is not woken for
	 * each token. */
	engine->wake_wanted = true;
	if (!now && now_ns - engine->woken_ns < engine->tuning->stream_interval)
		return;
	engine->wake_wanted = false;
	engine->woken_ns = now_ns;
	engine->o.wake(engine->o.arg);
}

void engine_mark(struct engine *engine, const struct engine_session *s)
{
	/* Pairs with the acquire in front_pump: the session's news is there. */
	atomic_fetch_or_explicit(
		&engine->o.news[s->index / 64], UINT64_C(1) << s->index % 64, memory_order_release);
}

static void use_experts(struct engine *engine, struct region *region, struct region *hints)
{
	struct error err = {.text = ""};

	int rc = engine->cached != NULL ? experts_cached_attach(engine->cached, region, hints, &err)
					: 0;
	/* After an update of the model one of the two processes is started before the other. */
	if (rc == -ESTALE)
		log_notice("experts are read without the expert-cache until both have the same "
			   "model open: %s",
			err.text);
	else if (rc != 0)
		log_error("the expert-cache's region is not used: %s", err.text);
	else
		err.text[0] = '\0';
	pthread_mutex_lock(&engine->lock);
	snprintf(engine->refusal, sizeof(engine->refusal), "%s", err.text);
	pthread_mutex_unlock(&engine->lock);
	region_close(region);
	region_close(hints);
}

static void use_device(struct engine *engine, struct region *region, int memory_fd)
{
	bool any = region->header != NULL;
	struct error err;
	int rc = engine->cached != NULL ? experts_cached_attach_device(engine->cached,
						  any ? region : NULL, memory_fd, &err)
					: 0;

	/* While the owner changes them, the table comes first, and then the memory. */
	if (rc == -ESTALE)
		log_info("the device's slots are not used yet: %s", err.text);
	else if (rc != 0)
		log_error("the device's slots are not used: %s", err.text);
	else
		log_info("experts are %s the device's memory now", any ? "in" : "no longer in");
	region_close(region);
	if (memory_fd >= 0)
		close(memory_fd);
}

static void use_policy(struct engine *engine, struct region *region)
{
	struct policy_page *page;
	struct ring records;
	struct error err;

	if (policy_attach(region_payload(region), region->bytes - REGION_DATA, &page, &records,
		    &err) != 0) {
		log_error("the policy's region is not used: %s", err.text);
		region_close(region);
		return;
	}
	if (engine->policy_region.header != NULL)
		region_close(&engine->policy_region);
	engine->policy_region = *region;
	engine->policy = page;
	engine->records = records;
}

/* A session that had given its place up has output already, in which stop strings may begin. */
static void submitted(struct engine *engine, uint32_t index)
{
	struct engine_session *s = &engine->sessions[index];

	enter(engine, index);
	if (s->end_before != SESSION_END_NONE)
		return;
	(void)ends_at_once(engine, s, pass_replay_text(engine, s));
}

static void take_commands(struct engine *engine)
{
	struct command c;

	while (ring_get(&engine->commands_out, &c, sizeof(c))) {
		switch ((enum command_kind)c.kind) {
		case COMMAND_SUBMIT:
			submitted(engine, c.index);
			break;
		case COMMAND_EXPERTS:
			use_experts(engine, &c.region, &c.hints);
			break;
		case COMMAND_DEVICE:
			use_device(engine, &c.region, (int)c.index);
			break;
		case COMMAND_POLICY:
			use_policy(engine, &c.region);
			break;
		case COMMAND_HIDDEN:
			hidden_feed_use(&engine->hidden, &c.region, engine->pass.max.n_batch);
			break;
		case COMMAND_STOP:
			engine->stop = true;
			break;
		}
	}
}

static void set_spin(struct engine *engine)
{
	struct queue *q = forward_queue(engine->forward);

	q->ops->set_spin(q, engine->tuning->pool_spin);
}

/* Puts the settings that the front gave in force, all of them at once. */
static void take_tuning(struct engine *engine)
{
	/* Pairs with the release in engine_tune: the settings are there. */
	struct tuning *t =
		atomic_exchange_explicit(&engine->tuning_next, NULL, memory_order_acquire);

	if (t == NULL)
		return;
	free(engine->tuning);
	engine->tuning = t;
	engine->drafts.tuning = t;
	engine->looked_ns = 0; /* ahead_max decides which sessions are paused */
	set_spin(engine);
	kv_keep_max(&engine->kv, t->prefix_pages);
	targets_begin(&engine->targets, &t->classes);
	if (engine->cached != NULL) {
		experts_cached_tune(engine->cached, t->expert_spin, t->expert_patience);
		experts_cached_hybrid(engine->cached, t->hybrid);
	}

	uint64_t ns = clock_ns() - t->given_ns, iterations = engine->iteration - t->given_iteration;
	atomic_store_explicit(&engine->tuning_ns, ns, memory_order_relaxed);
	if (ns > atomic_load_explicit(&engine->tuning_ns_max, memory_order_relaxed))
		atomic_store_explicit(&engine->tuning_ns_max, ns, memory_order_relaxed);
	if (iterations > atomic_load_explicit(&engine->tuning_iterations_max, memory_order_relaxed))
		atomic_store_explicit(
			&engine->tuning_iterations_max, iterations, memory_order_relaxed);
	atomic_store_explicit(&engine->tuned, t->number, memory_order_release);
}

/* on_layer and on_routed pass what the layers do on to the hints for later layers and passes. */
static void on_layer(void *arg, uint32_t layer, uint32_t n_tokens, const uint16_t *experts,
	const float *weights, const struct rows *hidden)
{
	struct engine *engine = arg;

	(void)n_tokens;
	(void)experts;
	(void)weights;
	gate_hints_layer(&engine->gates, layer, hidden);
}

static void on_routed(void *arg, uint32_t layer, uint32_t n_tokens, const uint16_t *experts)
{
	struct engine *engine = arg;

	routing_feed_layer(&engine->feed, layer, n_tokens, experts);
}

static void on_residual(void *arg, uint32_t layer, uint32_t n_tokens, const struct rows *x)
{
	struct engine *engine = arg;

	(void)n_tokens;
	hidden_feed_layer(&engine->hidden, layer, x);
}

void engine_set_hooks(struct engine *engine)
{
	const struct forward_hooks hooks = {
		/* The device has to stop for it in every layer. */
		.layer = engine->gates.on ? on_layer : NULL,
		.routed = engine->feed.on || engine->feed.kept ? on_routed : NULL,
		.residual = engine->hidden.on ? on_residual : NULL,
		.arg = engine,
	};

	forward_set_hooks(engine->forward, &hooks);
}

int engine_open(struct engine *engine, struct error *err)
{
	const struct engine_options *o = &engine->o;

	/* Made here, because a queue is for the thread that makes it. */
	int rc = forward_create(o->model, o->backend, &engine->kv, engine->experts,
		&engine->pass.max, &engine->forward, err);
	if (rc == 0 && o->host != NULL && engine->cached != NULL)
		rc = forward_use_host(engine->forward, o->host, err);
	if (rc == 0)
		rc = kv_use_queue(&engine->kv, forward_queue(engine->forward), err);
	if (rc == 0)
		rc = recall_states_open(engine, err);
	if (rc != 0)
		return rc;
	forward_set_uses(engine->forward, o->uses);
	set_spin(engine);
	gate_hints_queue(&engine->gates, forward_queue(engine->forward));
	if (engine->cached != NULL)
		experts_cached_queue(engine->cached, forward_queue(engine->forward));
	return 0;
}

uint32_t engine_step(struct engine *engine)
{
	take_commands(engine);
	/* What is lost may be the KV cache, and with it all that settings and passes refer to. */
	if (engine->stop || atomic_load_explicit(&engine->device_lost, memory_order_relaxed))
		return 0;
	take_tuning(engine);
	engine_take_kv(engine);
	uint32_t n = pass_run(engine);
	if (n > 0)
		counter_add(&engine->progress, 1);
	return n;
}

void engine_close(struct engine *engine)
{
	pass_publish(engine);
	recall_save_all(engine);
	forward_destroy(&engine->forward);
}

static void *engine_main(void *arg)
{
	struct engine *engine = arg;
	struct error err = {.text = ""};
	int rc = engine_open(engine, &err);

	pthread_setname_np(pthread_self(), "engine");
	pthread_mutex_lock(&engine->lock);
	engine->start_rc = rc;
	engine->start_err = err;
	pthread_cond_signal(&engine->ready);
	pthread_mutex_unlock(&engine->lock);
	while (rc == 0 && !engine->stop) {
		uint32_t seen = doorbell_read(bell_of(engine));

		if (engine_step(engine) > 0 || engine->stop)
			continue;
		if (engine->wake_wanted)
			engine_wake(engine, true);
		atomic_store_explicit(&engine->idle, true, memory_order_relaxed);
		doorbell_wait(bell_of(engine), seen, 0, engine->n_live > 0 ? WAITING_NS : IDLE_NS);
		atomic_store_explicit(&engine->idle, false, memory_order_relaxed);
	}
	engine_close(engine);
	return NULL;
}

int engine_start(struct engine *engine, struct error *err)
{
	int rc = pthread_create(&engine->thread, NULL, engine_main, engine);

	if (rc != 0)
		return error_thread(err, rc, "the engine's thread cannot be started");
	engine->started = true;
	pthread_mutex_lock(&engine->lock);
	while (engine->start_rc == 1)
		pthread_cond_wait(&engine->ready, &engine->lock);
	rc = engine->start_rc;
	if (rc != 0 && err != NULL)
		*err = engine->start_err;
	pthread_mutex_unlock(&engine->lock);
	return rc;
}

void engine_destroy(struct engine **out)
{
	struct engine *engine = *out;

	if (engine == NULL)
		return;
	if (engine->started) {
		command(engine, &(struct command){.kind = COMMAND_STOP});
		pthread_join(engine->thread, NULL);
	}
	for (uint32_t i = 0; i < engine->n_live; i++)
		kv_seq_forget(&engine_live(engine, i)->seq);
	recall_close(engine);
	drafts_exit(&engine->drafts);
	gate_hints_exit(&engine->gates);
	routing_feed_exit(&engine->feed);
	hidden_feed_exit(&engine->hidden);
	select_exit(&engine->select);
	experts_cached_destroy(&engine->cached);
	experts_mapped_exit(&engine->mapped);
	if (engine->policy_region.header != NULL)
		region_close(&engine->policy_region);
	kv_exit(&engine->kv);
	sampler_exit(&engine->sampler);
	free(engine->tuning);
	free(atomic_load_explicit(&engine->tuning_next, memory_order_relaxed));
	free(engine->commands_mem);
	free(engine->pass.parts);
	free(engine->pass.batch);
	free(engine->pass.cells);
	free(engine->pass.picks);
	free(engine->pass.budgets);
	free(engine->pass.picked);
	free(engine->pass.likely);
	pthread_cond_destroy(&engine->ready);
	pthread_mutex_destroy(&engine->lock);
	free(engine);
	*out = NULL;
}

void engine_submit(struct engine *engine, uint32_t index)
{
	command(engine, &(struct command){.kind = COMMAND_SUBMIT, .index = index});
}

void engine_tune(struct engine *engine, struct tuning *tuning)
{
	tuning->given_ns = clock_ns();
	tuning->given_iteration =
		atomic_load_explicit(&engine->iterations_total, memory_order_relaxed);
	tuning->number = ++engine->tunings;
	/* Pairs with the acquire in take_tuning. Settings that were not taken over in time are
	 * never in force. */
	free(atomic_exchange_explicit(&engine->tuning_next, tuning, memory_order_acq_rel));
	doorbell_ring(bell_of(engine));
}

void engine_changed(struct engine *engine, uint32_t index)
{
	/* Pairs with the acquire in plan.c. */
	atomic_fetch_or_explicit(
		&engine->changed[index / 64], UINT64_C(1) << index % 64, memory_order_release);
	doorbell_ring(bell_of(engine));
}

void engine_poke(struct engine *engine)
{
	doorbell_ring(bell_of(engine));
}

void engine_use_experts(struct engine *engine, struct region *region, struct region *hints)
{
	command(engine,
		&(struct command){.kind = COMMAND_EXPERTS, .region = *region, .hints = *hints});
	memset(region, 0, sizeof(*region));
	memset(hints, 0, sizeof(*hints));
}

void engine_use_device(struct engine *engine, struct region *region, int memory_fd)
{
	command(engine,
		&(struct command){
			.kind = COMMAND_DEVICE, .region = *region, .index = (uint32_t)memory_fd});
	*region = (struct region){.fd = -1};
}

void engine_refusal(struct engine *engine, char *out, size_t out_bytes)
{
	pthread_mutex_lock(&engine->lock);
	snprintf(out, out_bytes, "%s", engine->refusal);
	pthread_mutex_unlock(&engine->lock);
}

void engine_use_policy(struct engine *engine, struct region *region)
{
	command(engine, &(struct command){.kind = COMMAND_POLICY, .region = *region});
	memset(region, 0, sizeof(*region));
}

void engine_use_hidden(struct engine *engine, struct region *region)
{
	command(engine, &(struct command){.kind = COMMAND_HIDDEN, .region = *region});
	*region = (struct region){.fd = -1};
}

bool engine_device_lost(struct engine *engine, struct error *err)
{
	/* Pairs with the release in pass_lose_device: the reason is there. */
	if (!atomic_load_explicit(&engine->device_lost, memory_order_acquire))
		return false;
	*err = engine->device_err;
	return true;
}

bool engine_alive(const struct engine *engine, uint64_t *seen)
{
	uint64_t progress = atomic_load_explicit(&engine->progress, memory_order_relaxed);
	bool alive = progress != *seen || atomic_load_explicit(&engine->idle, memory_order_relaxed);

	*seen = progress;
	return alive;
}
