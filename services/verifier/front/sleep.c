/* Which sessions sleep. The engine gives up their KV pages (pass/recall.h); their places stay. */
#include "services/verifier/front/front.h"

#include "shared/base/clock.h"
#include "shared/base/log.h"

static enum session_sleep asleep(const struct front *front, uint32_t index)
{
	return atomic_load_explicit(&front->slots[index].asleep, memory_order_relaxed);
}

static void set(struct front *front, uint32_t index, enum session_sleep how)
{
	struct slot *slot = &front->slots[index];

	journal_sleep(slot->page, slot->shared, how);
	atomic_store_explicit(&slot->asleep, (uint32_t)how, memory_order_relaxed);
	engine_changed(front->engine, index);
}

uint64_t sleep_patience(const struct front *front, uint32_t how)
{
	return (uint64_t)(how == SLEEP_TOLD ? front->config->sleep_timeout
					    : front->config->client_timeout);
}

int sleep_tell(struct front *front, uint64_t uid, bool wake, struct error *err)
{
	int index = uid != 0 ? front_find(front, uid) : -1;

	if (index < 0)
		return error_set(
			err, ENOENT, "no such session here; outriderctl sessions lists them");
	const struct session_page *page = front->slots[index].page;
	if (journal_state(page) == SESSION_DONE)
		return error_set(err, EALREADY,
			"the answer is complete: its session holds no KV pages any more");
	if (!wake && page->request.budgeted) {
		char experts[LAYER_LIMITS_TEXT];

		return error_set(err, EOPNOTSUPP,
			"a session with an expert budget (budget_experts %.64s) cannot sleep: its "
			"keys and values could not be computed again",
			layer_limits_text(page->request.budget_experts,
				front->model->config.n_layers, experts));
	}
	/* The time for which its client may take nothing begins anew. */
	if (wake && asleep(front, (uint32_t)index) == SLEEP_TOLD)
		front->sessions[index].heard_ns = clock_ns();
	set(front, (uint32_t)index, wake ? SLEEP_NOT : SLEEP_TOLD);
	log_session(LOG_LEVEL_INFO, uid, 0, wake ? "is woken" : "is told to sleep");
	return index;
}

void sleep_look(struct front *front, uint32_t index, uint64_t now_ns)
{
	const struct front_session *fs = &front->sessions[index];
	const struct slot *slot = &front->slots[index];
	uint64_t after_ns = (uint64_t)front->config->sleep_after;
	bool aside = atomic_load_explicit(&slot->aside, memory_order_relaxed);

	if (asleep(front, index) == SLEEP_IDLE && !aside) {
		set(front, index, SLEEP_NOT);
	} else if (asleep(front, index) == SLEEP_NOT && aside && after_ns != 0 &&
		   fs->blocked_ns != 0 && now_ns - fs->blocked_ns >= after_ns &&
		   journal_state(slot->page) != SESSION_DONE && !slot->page->request.budgeted) {
		log_session(LOG_LEVEL_INFO, fs->uid, 0, "falls asleep: its client takes nothing");
		set(front, index, SLEEP_IDLE);
	}
}

void sleep_restore(struct front *front, uint32_t index)
{
	struct slot *slot = &front->slots[index];
	uint32_t how = atomic_load_explicit(&slot->page->asleep, memory_order_relaxed);

	if (how > SLEEP_IDLE)
		how = SLEEP_NOT;
	journal_sleep(slot->page, slot->shared, (enum session_sleep)how);
	atomic_store_explicit(&slot->asleep, how, memory_order_relaxed);
}
