/* Another size for the KV cache while sessions run. */
#include "services/verifier/pass/engine.h"
#include "services/verifier/state/kv_size.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/base/plural.h"
#include "shared/base/units.h"

#include <errno.h>
#include <string.h>
#include <time.h>

/* Sessions whose answer cannot be computed again: see engine_lost_budget. */
static uint32_t bound(struct engine *engine)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < engine->n_live; i++) {
		const struct engine_session *s = engine_live(engine, i);

		n += s->page->request.budgeted && s->seq.n > 0 && session_n_out(s, s->n_tokens) > 1;
	}
	return n;
}

/* Ends everything that refers to the cache, and the cache. */
static void drop(struct engine *engine)
{
	pass_publish(engine);
	recall_save_all(engine);
	for (uint32_t i = 0; i < engine->n_live; i++) {
		struct engine_session *s = engine_live(engine, i);

		/* Also of one that has no pages yet: it may wait for some from the disk. */
		engine_lose_kv(engine, s);
		s->last_snapshot = KV_NONE;
	}
	recall_close(engine);
	/* Its graphs know where cells lie. */
	if (engine->cached != NULL)
		experts_cached_queue(engine->cached, NULL);
	forward_destroy(&engine->forward);
	kv_exit(&engine->kv);
}

static int make(struct engine *engine, struct regions *regions,
	const struct verifier_config *config, struct error *err)
{
	const struct engine_options *o = &engine->o;
	int rc = regions_remake_kv(regions, config, o->model, o->backend, err);

	if (rc == 0)
		rc = engine_create_kv(engine, err);
	if (rc == 0)
		rc = engine_open(engine, err);
	if (rc == 0)
		return 0;
	forward_destroy(&engine->forward);
	recall_close(engine);
	kv_exit(&engine->kv);
	return rc;
}

/* Whether the device has room for the next cache in place of the one that there is. Other programs may
 * have filled it since the change was allowed; once its memory is given back, nothing says that it can be
 * had again. */
static int check_room(const struct engine *engine, int64_t now,
	const struct engine_kv_change *change, struct error *err)
{
	const struct engine_options *o = &engine->o;
	int64_t next = change->config.kv_allocated;
	uint64_t had = kv_size_device_bytes(&change->config, o->model, o->backend, now);
	uint64_t wanted = kv_size_device_bytes(&change->config, o->model, o->backend, next);
	struct backend_memory memory;

	if (wanted <= had)
		return 0;
	o->backend->ops->memory(o->backend, &memory);
	if (wanted - had <= memory.free)
		return 0;
	return error_set(err, ENOMEM,
		"KV cache of %lld tokens (kv_tokens) needs %s more of %s, which has %s free: it "
		"stays at %lld tokens",
		(long long)next, UNITS_SIZE(wanted - had), o->backend->device->name,
		UNITS_SIZE(memory.free), (long long)now);
}

/* Without a cache this process is of no use. Its successor has the size of the settings. */
static void give_up(struct engine *engine, struct error *err)
{
	(void)error_prefix(err, -ENOMEM, "the KV cache cannot be made again");
	pass_lose_device(engine, err);
}

static void change(struct engine *engine, struct engine_kv_change *change)
{
	struct verifier_config former = change->config;
	uint32_t n = bound(engine), pages = engine->kv.layout.n_pages;
	uint64_t start_ns = clock_ns();
	struct error err;

	if (n > 0) {
		change->rc = error_set(&change->err, EBUSY,
			"%u answer%s with an expert budget (budget_experts) could not go on with "
			"the same experts: change the KV cache when they have ended",
			n, plural(n));
		return;
	}
	change->rc = check_room(engine, (int64_t)pages * KV_PAGE_CELLS, change, &change->err);
	if (change->rc != 0)
		return;
	drop(engine);
	change->rc = make(engine, change->regions, &change->config, &change->err);
	if (change->rc == 0) {
		log_notice("KV cache: %u tokens, was %u; %u sessions are computed again (%.1f ms)",
			engine->kv.layout.n_pages * KV_PAGE_CELLS, pages * KV_PAGE_CELLS,
			engine->n_live, (double)(clock_ns() - start_ns) / 1e6);
		return;
	}
	former.kv_allocated = (int64_t)pages * KV_PAGE_CELLS;
	if (make(engine, change->regions, &former, &err) != 0) {
		const struct error why = change->err;

		give_up(engine, &err);
		change->rc = error_set(&change->err, -change->rc,
			"%.200s; the former size cannot be had again either: the verifier begins "
			"anew",
			why.text);
	}
}

void engine_take_kv(struct engine *engine)
{
	/* Pairs with the release in engine_resize_kv: the change is there. */
	struct engine_kv_change *next =
		atomic_exchange_explicit(&engine->kv_change, NULL, memory_order_acquire);

	if (next == NULL)
		return;
	change(engine, next);
	pthread_mutex_lock(&engine->lock);
	next->done = true;
	pthread_cond_signal(&engine->ready);
	pthread_mutex_unlock(&engine->lock);
}

void engine_resize_kv(struct engine *engine, struct engine_kv_change *change)
{
	change->done = false;
	atomic_store_explicit(&engine->kv_change, change, memory_order_release);
	engine_poke(engine);
}

bool engine_resized_kv(struct engine *engine, const struct engine_kv_change *change, uint64_t ns)
{
	struct timespec end;
	bool done;

	clock_gettime(CLOCK_REALTIME, &end);
	ns += (uint64_t)end.tv_nsec;
	end.tv_sec += (time_t)(ns / 1000000000);
	end.tv_nsec = (long)(ns % 1000000000);
	pthread_mutex_lock(&engine->lock);
	while (!change->done && pthread_cond_timedwait(&engine->ready, &engine->lock, &end) == 0)
		continue;
	done = change->done;
	pthread_mutex_unlock(&engine->lock);
	return done;
}
