/*
 * The engine: one thread that owns the forward pass, the KV cache, the sampler and the running session pages. The
 * front talks to it through a ring of commands and the atomics of struct slot; it never waits for the front.
 * engine_* functions are the front's (loop thread) unless said otherwise; pass.h is the engine's own work.
 */
#pragma once

#include "services/verifier/state/config.h"
#include "services/verifier/pass/drafts.h"
#include "services/verifier/pass/gate_hints.h"
#include "services/verifier/pass/pass.h"
#include "services/verifier/pass/routing_feed.h"
#include "services/verifier/state/proof.h"
#include "services/verifier/state/regions.h"
#include "services/verifier/state/tuning.h"
#include "shared/ipc/daemon.h"
#include "shared/model/text/tokenizer.h"
#include "shared/spec/policy.h"
#include "shared/spec/slots.h"

#include <pthread.h>

struct backend;

struct engine_options {
	const struct verifier_config *config;
	const struct model *model;
	const struct tokenizer *tokenizer;
	struct backend *backend;
	const struct regions *regions;
	struct slot *slots; /* [LIMIT_SESSIONS] */
	_Atomic uint64_t
		*news; /* a bit for each of them: it has something for its client, or has ended */
	struct proof *proof;
	uint64_t generation;
	bool (*cache_alive)(void *arg); /* any thread */
	/* Engine thread: clients have something to get. Called at most every stream_interval, and for first tokens and
	 * ends. */
	void (*wake)(void *arg);
	void *arg;
};

enum { ENGINE_CHANGED_WORDS = (LIMIT_SESSIONS + 63) / 64 };

struct engine {
	struct engine_options o;
	struct kv kv;
	struct forward *forward;
	struct sampler sampler; /* scratch for accepting drafts of maximal coupling */
	struct experts_mapped mapped;
	struct experts_cached *cached;
	struct expert_source *experts; /* NULL for dense models */
	struct drafts drafts;
	struct gate_hints gates;
	struct routing_feed feed;
	struct region policy_region; /* header NULL: never seen one */
	struct policy_page *policy;
	struct ring records;

	void *commands_mem;
	struct ring commands_in, commands_out; /* the front's end, the engine's */

	/* Live sessions, oldest first, and those of them that may run, in the order in which they go. */
	struct sched_session *live[LIMIT_SESSIONS], *order[LIMIT_SESSIONS];
	uint32_t n_live, n_order,
		n_ended; /* n_ended: of live[], those that are not live any more */
	bool order_stale;
	uint64_t looked_ns; /* at all sessions */
	struct engine_session sessions[LIMIT_SESSIONS];
	/* A bit for each session that the front has changed something about. */
	_Atomic uint64_t changed[ENGINE_CHANGED_WORDS];

	/* Sessions with tokens that are not journalled yet. */
	struct engine_session *fresh[LIMIT_SESSIONS];
	uint32_t n_fresh;

	struct pass pass; /* allocated once */
	uint64_t pass_ns; /* what a pass without prompt tokens takes, smoothed; 0: not measured */
	struct share share; /* scratch of the step "share" */

	/* The settings that hold, the engine's alone, and those that the front gave since, which take their place when the next pass
	 * starts; NULL: none. tunings, the front's: how many it gave. */
	struct tuning *tuning;
	_Atomic(struct tuning *) tuning_next;
	uint64_t tunings;

	uint64_t iteration;
	bool wake_wanted;
	uint64_t woken_ns;

	/* Read by the front as hints. */
	_Atomic uint64_t iterations_total, output_total, progress;
	/* Drafts that were late: of sessions that then sat a pass out, and that ran without. */
	_Atomic uint64_t late_out, late_without;
	/* Settings taken over; how long the last and the slowest took, and the most iterations that ended meanwhile. */
	_Atomic uint64_t tuned, tuning_ns, tuning_ns_max, tuning_iterations_max;
	_Atomic bool idle;

	/* Start and stop. */
	pthread_t thread;
	bool started, stop;
	pthread_mutex_t lock;
	pthread_cond_t ready;
	int start_rc; /* 1 while starting */
	struct error start_err;
	char refusal[160]; /* why the expert-cache's region is not used, or ""; under lock */
};

/* The i-th oldest live session; i < n_live. */
static inline struct engine_session *engine_live(struct engine *engine, uint32_t i)
{
	return &engine->sessions[engine->live[i]->index];
}

/* Allocates everything but the pool's threads; the engine does not run yet. Borrows what options point to. */
int engine_create(const struct engine_options *options, struct engine **out, struct error *err);
/* Starts the thread and waits until its pool stands. */
int engine_start(struct engine *engine, struct error *err);
/* Stops the thread after the iteration it is in; sessions stay as they are in their pages. */
void engine_destroy(struct engine **engine);

/* Takes slots[index] (page filled, credit set) into the queue; output tokens that the page has are gone on from. One whose page
 * says how its answer ended is computed once more, for its records. */
void engine_submit(struct engine *engine, uint32_t index);
/* At start, before engine_start, for each page that a predecessor left unfinished; then engine_recovered once. */
void engine_recover(struct engine *engine, uint32_t index, bool kv_kept);
void engine_recovered(struct engine *engine);
/* From the next iteration on these hold. The engine's from now on. */
void engine_tune(struct engine *engine, struct tuning *tuning);
/* Something changed about the session of slots[index], its credit or that it is cancelled: the engine looks at it now. */
void engine_changed(struct engine *engine, uint32_t index);
/* Something changed about all of them: the engine runs a pass now. */
void engine_poke(struct engine *engine);
/* Uses these regions from the next iteration on; takes them over (*region is emptied). */
void engine_use_experts(struct engine *engine, struct region *region, struct region *hints);
void engine_use_policy(struct engine *engine, struct region *region);
/* Why the region that engine_use_experts gave last is not used: "" when it is, or was not looked at yet. */
void engine_refusal(struct engine *engine, char *out, size_t out_bytes);
/* Iterations go on, or there is nothing to do: for the watchdog. seen is the caller's memory between calls. */
bool engine_alive(const struct engine *engine, uint64_t *seen);

/* What the thread that engine_start starts does, and a test that runs passes one by one: it gets ready, on the calling thread; takes
 * one round, of commands, settings and a pass, and returns how many sessions took part; and ends. */
int engine_open(struct engine *engine, struct error *err);
uint32_t engine_step(struct engine *engine);
void engine_close(struct engine *engine);

/* What the scheduler goes by now. */
static inline struct sched_limits engine_limits(const struct engine *engine)
{
	return (struct sched_limits){
		.sessions_max = engine->tuning->sessions_max,
		.prefill_chunk = engine->tuning->prefill_chunk,
		.rows = LIMIT_DRAFT_SHARE + 1,
	};
}

/* Engine thread. Ends a session: KV pages back, page DONE; the front may free and reuse page and slot from then on.
 * engine_tidy, before commands are taken again, drops those that have ended from live[] and wakes the front for them, once. */
void engine_finish(struct engine *engine, struct engine_session *s, enum session_end end);
/* Gives a session up that has not ended: KV pages back, page queued; the front keeps its tokens, or submits it again. */
void engine_yield(struct engine *engine, struct engine_session *s);
void engine_tidy(struct engine *engine);
/* The session has something for the front, which is to be woken for it. */
void engine_mark(struct engine *engine, const struct engine_session *s);
/* Wakes the front: now, or when it was not woken for a while. */
void engine_wake(struct engine *engine, bool now);
