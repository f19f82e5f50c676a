/* The steps of a pass in their order. */
#include "services/verifier/pass/pass.h"

#include "services/verifier/pass/engine.h"
#include "shared/base/clock.h"
#include "shared/base/counter.h"
#include "shared/base/log.h"
#include "shared/model/gguf/gguf_watch.h"

#include <string.h>

/* Ends all sessions: without the model no answer can go on. */
static void fail_all(struct engine *engine, const struct error *err)
{
	for (uint32_t i = 0; i < engine->n_live; i++) {
		struct engine_session *s = engine_live(engine, i);

		snprintf(s->slot->usage.message, sizeof(s->slot->usage.message), "%s", err->text);
		log_session(
			LOG_LEVEL_ERROR, s->uid, engine->iteration, "%s", s->slot->usage.message);
		/* A finished answer keeps its end. */
		engine_finish(engine, s,
			s->end_before != SESSION_END_NONE ? s->end_before : SESSION_END_ERROR);
	}
	engine_tidy(engine);
}

/* Before the requests of a pass: notes which hints are to be made. */
static void begin_hints(struct engine *engine)
{
	gate_hints_begin(&engine->gates);
	engine->feed.on = gate_hints_wanted(&engine->gates, HINT_HISTORY) &&
			  atomic_load_explicit(&engine->drafts.peer, memory_order_relaxed) != 0;
	engine->drafts.iteration =
		engine->cached != NULL ? experts_cached_iteration(engine->cached) + 1 : 0;
}

/* Call after a pass that succeeded. */
static void end_hints(struct engine *engine, const struct pass *pass)
{
	uint64_t wait_ns = engine->experts != NULL
				   ? engine->experts->stats.wait_ns - pass->experts_before.wait_ns
				   : 0;

	gate_hints_end(&engine->gates, pass->forwarded_ns - pass->forward_ns, wait_ns,
		pass->n_prefill == 0);
	if (!engine->feed.on && !engine->feed.kept)
		return;
	uint64_t start_ns = clock_ns();
	for (uint32_t i = 0; i < pass->n_parts; i++) {
		const struct pass_part *part = &pass->parts[i];
		const struct engine_session *s = part->session;
		uint32_t n = s->seq.n;

		routing_feed_publish(&engine->feed, pass->batch, part->row,
			part->n + part->n_drafts, s->uid, s->index,
			n > 0 ? s->page->tokens[n - 1] : -1,
			pass->n_prefill == 0 ? &engine->select.history : NULL);
	}
	counter_add(&engine->feed.spent_ns, clock_ns() - start_ns);
}

/* Whether the results of a pass, which ended with rc, may be used. The weights that were read are
 * the model's only if its files still hold what was opened; to check that costs a system call per
 * file. After something has touched the files, it waits until they have been compared (proof.h). */
static int judge(const struct engine *engine, int rc, struct error *err)
{
	struct backend *backend = engine->o.backend;
	int lost = gguf_watch(engine->o.model->gguf, err);
	bool damaged = engine->cached != NULL && experts_cached_damaged(engine->cached);

	/* First: a device that is lost ends no copies, and slots are given back whose bytes never came. */
	if (lost == 0 && rc != 0 && backend->ops->failure(backend, err) != 0)
		return -ENODEV;
	if (lost == 0 && damaged)
		return error_set(err, EUCLEAN,
			"another process wrote to the table of expert slots while it was in use: "
			"the results of this pass are discarded");
	if (lost == 0)
		lost = proof_wait(engine->o.proof, engine->o.model->gguf, err);
	if (lost != 0 || rc == 0)
		return lost;
	return error_set(err, -rc, "the model cannot be computed: %s", strerror(-rc));
}

/* The step "run". */
static int run(struct engine *engine, struct pass *pass, struct error *err)
{
	/* The cache's policy gets the activations of a session only when it is alone. */
	if (engine->cached != NULL) {
		experts_cached_session(
			engine->cached, pass->n_parts == 1 ? pass->parts[0].session->uid : 0);
		experts_cached_drafted(engine->cached, pass->drafted_ns - pass->start_ns);
	}
	engine->iteration++;
	if (engine->experts != NULL)
		pass->experts_before = engine->experts->stats;
	hidden_feed_begin(&engine->hidden, pass, forward_queue(engine->forward),
		atomic_load_explicit(&engine->drafts.peer, memory_order_relaxed) != 0);
	engine_set_hooks(engine);
	pass->forward_ns = clock_ns();
	int rc = forward_set_budgets(engine->forward, pass->budgets, pass->n_budgets);
	if (rc == 0)
		rc = forward_begin(engine->forward, pass->batch, pass->n_batch, pass->picks,
			pass->n_picks, pass->picked);
	/* Publishes the tokens of the last pass, if the back end leaves time for it. */
	pass_publish(engine);
	if (rc == 0)
		rc = forward_wait(engine->forward);
	/* Picking is counted as sampling. */
	pass->forwarded_ns = clock_ns() - forward_stats(engine->forward)->pick_ns;
	if (rc == 0 && forward_stats(engine->forward)->whole)
		counter_add(&engine->whole_passes, 1);
	rc = judge(engine, rc, err);
	if (rc == 0)
		end_hints(engine, pass);
	return rc;
}

/* The steps before "run". False: there is nothing to run. */
static bool prepare(struct engine *engine, struct pass *pass)
{
	if (pass_plan(engine, pass) == 0)
		return false;
	begin_hints(engine);
	pass_draft(engine, pass);
	/* A drafter that says what tokens need has to know what they needed. */
	engine->feed.on |= engine->select.asked;
	pass_select(engine, pass);
	engine->feed.kept = engine->select.learns;
	pass_share(engine, pass);
	pass_masks(engine, pass);
	pass->drafted_ns = clock_ns();
	return pass_build(engine, pass) > 0;
}

static void end(struct engine *engine, struct pass *pass)
{
	for (uint32_t i = 0; i < pass->n_parts; i++)
		pass->parts[i].session->part = NULL;
	engine_tidy(engine);
	atomic_store_explicit(&engine->iterations_total, engine->iteration, memory_order_relaxed);
}

void pass_lose_device(struct engine *engine, const struct error *err)
{
	log_error("%s", err->text);
	if (engine->o.config->device_lost == VERIFIER_DEVICE_LOST_END &&
		engine->o.backend->device != NULL)
		fail_all(engine, err);
	engine->device_err = *err;
	atomic_store_explicit(&engine->device_lost, true, memory_order_release);
	engine_wake(engine, true);
}

uint32_t pass_run(struct engine *engine)
{
	struct pass *pass = &engine->pass;
	struct error err;

	pass->start_ns = clock_ns();
	pass_sweep(engine, pass);
	if (gguf_lost(engine->o.model->gguf, &err) != 0)
		fail_all(engine, &err);
	if (!prepare(engine, pass)) {
		pass_publish(engine);
		return 0;
	}
	int rc = run(engine, pass, &err);
	if (rc == 0) {
		pass_accept(engine, pass);
		pass_select_learn(engine, pass);
		pass_commit(engine, pass);
		if (!engine->o.backend->ops->behind)
			pass_publish(engine);
		pass_masks_draft(engine, pass);
		pass_report(engine, pass);
	} else if (rc == -ENODEV) {
		pass_lose_device(engine, &err);
	} else {
		fail_all(engine, &err);
	}
	end(engine, pass);
	return pass->n_parts;
}
