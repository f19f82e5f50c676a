/*
 * The engine: one thread that owns the forward pass, the KV cache, the sampler and the pages of
 * running sessions. The front (the daemon's loop thread) talks to it through a ring of commands and
 * the atomics of struct slot. The engine never waits for the front. The functions engine_* are for
 * the front unless their comments say otherwise; pass.h is the engine's own work.
 */
#pragma once

#include "services/verifier/state/config.h"
#include "services/verifier/pass/drafts.h"
#include "services/verifier/pass/gate_hints.h"
#include "services/verifier/pass/hidden_feed.h"
#include "services/verifier/pass/masks.h"
#include "services/verifier/pass/pass.h"
#include "services/verifier/pass/routing_feed.h"
#include "services/verifier/pass/select.h"
#include "services/verifier/pass/targets.h"
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
	const struct adapter *adapter; /* for drafts by masks; NULL: there is none */
	const struct tokenizer *tokenizer;
	struct backend *backend;
	struct backend *host; /* the CPU's beside a device; NULL: none */
	const struct regions *regions;
	/* The KV cache's store, taken over, if it lies on a device; else its backend is NULL. */
	struct buffer *kv_store;
	struct slot *slots; /* [LIMIT_SESSIONS] */
	/* one bit per slot: the session has something for its client, or has ended */
	_Atomic uint64_t *news;
	struct proof *proof;
	/* [n_layers][n_experts] of the profile that expert budgets may rank by; NULL: there is none
	 */
	const uint64_t *uses;
	uint64_t generation;
	bool (*cache_alive)(void *arg); /* any thread */
	/* Called by the engine thread when clients have something to get: for first tokens and ends
	 * at once, otherwise at most every stream_interval. */
	void (*wake)(void *arg);
	void *arg;
};

struct engine_kv_change {
	struct regions *regions;
	struct verifier_config config;
	bool done; /* under the engine's lock */
	int rc;
	struct error err;
};

enum { ENGINE_CHANGED_WORDS = (LIMIT_SESSIONS + 63) / 64 };

struct engine {
	struct engine_options o;
	struct kv kv;
	struct forward *forward;
	struct sampler sampler; /* scratch for accepting drafts with maximal coupling */
	struct experts_mapped mapped;
	struct experts_cached *cached;
	struct expert_source *experts; /* NULL for dense models */
	struct drafts drafts;
	struct gate_hints gates;
	struct routing_feed feed;
	struct hidden_feed hidden;
	struct engine_disk disk;
	struct region policy_region; /* header NULL: there was none yet */
	struct policy_page *policy;
	struct ring records;

	void *commands_mem;
	struct ring commands_in, commands_out; /* the front's end and the engine's end */

	/* Live sessions, oldest first, and the live sessions that may run, in the order in which
	 * they are served. */
	struct sched_session *live[LIMIT_SESSIONS], *order[LIMIT_SESSIONS];
	uint32_t n_live, n_order,
		n_ended; /* n_ended: how many of live[] have ended and are still to be removed */
	bool order_stale;
	uint64_t looked_ns; /* when all sessions were last looked at */
	struct engine_session sessions[LIMIT_SESSIONS];
	/* One bit per session: the front has changed something about it. */
	_Atomic uint64_t changed[ENGINE_CHANGED_WORDS];

	/* Sessions with tokens that are not in the journal yet. */
	struct engine_session *fresh[LIMIT_SESSIONS];
	uint32_t n_fresh;

	struct pass pass; /* allocated once */
	struct sched_cost cost; /* of passes, the wait for drafts included */
	struct targets targets;
	uint64_t pass_ns; /* time of a pass without prompt tokens, smoothed; 0: not measured */
	struct share share; /* scratch of the step "share" */
	struct select select; /* of the step "select" */
	struct masks_counts masks;

	/* tuning: the settings in force, the engine's alone. tuning_next: those that the front gave
	 * since, which replace them when the next pass begins; NULL: none. tunings: how many the
	 * front gave; the front's. */
	struct tuning *tuning;
	_Atomic(struct tuning *) tuning_next;
	uint64_t tunings;

	uint64_t iteration;
	bool wake_wanted;
	uint64_t woken_ns;

	/* A change of the KV cache's size that the front waits for; NULL: none. */
	_Atomic(struct engine_kv_change *) kv_change;

	/* Read by the front without ordering, as hints. */
	_Atomic uint64_t iterations_total, output_total, progress;
	/* prompt tokens that sessions found in the KV cache; tokens and states kept there now */
	_Atomic uint64_t cached_total, kept_tokens, kept_states;
	_Atomic uint64_t whole_passes; /* in which no layer waited for the host */
	/* Late drafts: of sessions that sat a pass out for that, and of sessions that took part
	 * without. */
	_Atomic uint64_t late_out, late_without;
	/* Settings that were taken over: how many, how long the last and the slowest took, and the
	 * most iterations that ended meanwhile. */
	_Atomic uint64_t tuned, tuning_ns, tuning_ns_max, tuning_iterations_max;
	_Atomic bool idle;

	/* For start and stop. */
	pthread_t thread;
	bool started, stop;
	pthread_mutex_t lock;
	pthread_cond_t ready;
	int start_rc; /* 1 while the engine starts */
	struct error start_err;
	char refusal[160]; /* why the expert cache's region is not used, or ""; under lock */
	struct error device_err; /* why the device is lost, once it is */
	_Atomic bool device_lost; /* no pass runs any more */
};

/* The i-th oldest live session; i < n_live. */
static inline struct engine_session *engine_live(struct engine *engine, uint32_t i)
{
	return &engine->sessions[engine->live[i]->index];
}

/* Allocates everything except the pool's threads; the engine does not run yet. Borrows everything
 * that options point to. */
int engine_create(const struct engine_options *options, struct engine **out, struct error *err);
/* Starts the thread and waits until its pool is there. */
int engine_start(struct engine *engine, struct error *err);
/* Stops the thread after the iteration in progress; the sessions stay in their pages. */
void engine_destroy(struct engine **engine);

/* Puts slots[index] into the queue; its page is filled and its credit set. If the page has output
 * tokens, the answer continues behind them. A page that says how its answer ended is computed once
 * more, for its records. */
void engine_submit(struct engine *engine, uint32_t index);
/* At start, before engine_start: call engine_recover for each page that a predecessor left
 * unfinished, then engine_recovered once. */
void engine_recover(struct engine *engine, uint32_t index, bool kv_kept);
void engine_recovered(struct engine *engine);
/* How many tokens of the sessions are in the KV cache. Before engine_start. */
uint64_t engine_kept_tokens(struct engine *engine);
/* Settings that hold from the next iteration on. Takes `tuning` over. */
void engine_tune(struct engine *engine, struct tuning *tuning);
/* Makes the KV cache anew in the size of change->config, between two passes. Until it is done the change,
 * which stays the caller's, and its regions belong to the engine. All sessions go on: their tokens are
 * computed again, or read from disk. change->rc: -EBUSY: sessions with an expert budget could not go on;
 * -ENOMEM: there is no memory. The former size is in force then; if it cannot be had again, the engine is
 * lost (engine_device_lost). */
void engine_resize_kv(struct engine *engine, struct engine_kv_change *change);
/* Waits so long; true when it is done. */
bool engine_resized_kv(struct engine *engine, const struct engine_kv_change *change, uint64_t ns);
/* Makes the engine look at slots[index] now, because its credit has changed or it was cancelled. */
void engine_changed(struct engine *engine, uint32_t index);
/* Makes the engine run a pass now, because something has changed about all sessions. */
void engine_poke(struct engine *engine);
/* Hands over regions, which are used from the next iteration on (*region is emptied). */
void engine_use_experts(struct engine *engine, struct region *region, struct region *hints);
/* The device's slots, and their memory, whose descriptor the engine closes. header NULL: there are
 * none any more. */
void engine_use_device(struct engine *engine, struct region *region, int memory_fd);
void engine_use_policy(struct engine *engine, struct region *region);
/* header NULL: no hidden states are wanted any more. */
void engine_use_hidden(struct engine *engine, struct region *region);
/* Why the region of the last engine_use_experts is not used: "" when it is used, or was not looked
 * at yet. */
void engine_refusal(struct engine *engine, char *out, size_t out_bytes);
/* For the watchdog: true when iterations go on, or there is nothing to do. seen: the caller's
 * memory between calls. */
bool engine_alive(const struct engine *engine, uint64_t *seen);

/* The parts of the engine's thread, for engine_start and for a test that runs passes one by one.
 * engine_open prepares on the calling thread. engine_step does one round of commands, settings and
 * a pass, and returns how many sessions took part. engine_close ends. */
int engine_open(struct engine *engine, struct error *err);
uint32_t engine_step(struct engine *engine);
void engine_close(struct engine *engine);

/* The limits that the scheduler uses now. */
static inline struct sched_limits engine_limits(const struct engine *engine)
{
	return (struct sched_limits){
		.sessions_max = engine->tuning->sessions_max,
		.prefill_chunk = engine->tuning->prefill_chunk,
		.rows = LIMIT_DRAFT_SHARE + 1,
		.fast_chunk = FORWARD_FAST_CHUNK,
	};
}

/* Engine thread. Ends a session: its KV pages are given back and its page is DONE; from then on the
 * front may free and reuse page and slot. engine_tidy must run before commands are taken again: it
 * removes the ended ones from live[] and wakes the front once for all of them. */
void engine_finish(struct engine *engine, struct engine_session *s, enum session_end end);
/* Engine thread. A session loses its KV pages. When there is room it is computed again, to the same tokens.
 */
void engine_lose_kv(struct engine *engine, struct engine_session *s);
/* Engine thread, or before it starts: makes engine->kv, and what belongs to it, of the regions. */
int engine_create_kv(struct engine *engine, struct error *err);
/* Engine thread, between two passes: carries out engine_resize_kv (resize.c). */
void engine_take_kv(struct engine *engine);
/* Engine thread. Whether a session with an expert budget has lost the keys and values of its answer.
 * To compute them again would give others: which experts were left out depended on the drafts of
 * each pass. engine_end_lost ends such a session with an error. */
bool engine_lost_budget(const struct engine_session *s);
void engine_end_lost(struct engine *engine, struct engine_session *s);
/* Engine thread. Lets go of a session that has not ended: its KV pages are given back, its page is
 * queued; the front keeps its tokens, or submits it again. */
void engine_yield(struct engine *engine, struct engine_session *s);
void engine_tidy(struct engine *engine);
/* Engine thread. Marks that the session has something for the front, which is to be woken for it.
 */
void engine_mark(struct engine *engine, const struct engine_session *s);
/* Engine thread. Sets what the coming pass calls at each layer. */
void engine_set_hooks(struct engine *engine);
/* Engine thread. Wakes the front: at once (now), or if it was not woken for a while. */
void engine_wake(struct engine *engine, bool now);

/* Whether the device was lost, and why. Any thread. */
bool engine_device_lost(struct engine *engine, struct error *err);
