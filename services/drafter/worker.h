/*
 * The draft thread: it waits at the doorbell of the request ring, drafts, and answers on the reply
 * ring.
 *
 * Regions come from the loop thread through a mailbox that `mutex` guards. The draft thread takes
 * them between rounds and unmaps the old ones itself, so nothing is unmapped while it may read it.
 */
#pragma once

#include "services/drafter/grammars.h"
#include "services/drafter/head_states.h"
#include "services/drafter/model_engine.h"
#include "services/drafter/tree.h"
#include "shared/ipc/peer_card.h"

#include <pthread.h>

/* The regions that the mailbox may hold. */
enum worker_region {
	WORKER_SESSIONS,
	WORKER_DRAFT,
	WORKER_SUPPORTS,
	WORKER_EXPERTS,
	WORKER_HINTS,
	WORKER_POLICY,
	WORKER_HIDDEN,
	WORKER_WEIGHTS,
	WORKER_REGIONS
};

struct worker_counts {
	_Atomic uint64_t requests, replies, stale, drafted, drafted_ahead, foreseen, rounds,
		busy_ns;
};

/* The device that drafts (worker_device.h), as others see it. */
struct worker_device_state {
	const char *name, *variant; /* of the back end; NULL: there is none */
	struct draft_engine_needs needs; /* zeros: no model that it could compute */
	bool there; /* the model is in its memory */
	/* what drafts (shared/base/arithmetic.h): the exact one, or that of the device's library */
	uint32_t arithmetic;
	char refusal[400]; /* why the CPU drafts, although a device was set; "" */
};
struct worker_device {
	struct backend *backend; /* the draft thread's own, once it has started; NULL: none */
	bool opened; /* or refused */
	const char *runtime_dir; /* NULL: nothing is claimed */
	int claim; /* device_claim.h; -1: none */
	/* The arithmetic of its library, and what that depends on. 0: the library is not used. Set before
	 * the thread starts; then the draft thread's own */
	uint32_t fast;
	char library[BACKEND_FAST_NAME];
	struct worker_device_state state; /* under mutex; written by the draft thread */
	/* The last answer, under mutex, and whether it is to be taken over. */
	_Atomic bool answered;
	bool granted;
	uint64_t answer_to;
	char why[256];
	bool lost; /* the draft thread's own */
};

struct worker {
	const struct drafter_config *config; /* &own, for the draft thread */
	pthread_t thread;
	pthread_mutex_t mutex;
	pthread_cond_t changed; /* the thread waits here while there is no request ring */
	bool started, stop;
	/* Mailbox, under mutex: the regions to take over. */
	struct region mail[WORKER_REGIONS];
	bool has_mail[WORKER_REGIONS];
	struct doorbell *bell; /* of the request ring in use; NULL = none. Under mutex */
	char refusal
		/* why the draft model or head is not used; "" = it is used, or there is none.
		 * Under mutex */
		[400];
	/* Of layer-skip: why it is not used, or ""; and whether requests that name no method get it.
	 * Under mutex */
	char skip_refusal[400];
	char skip_told[400]; /* what the log has of it; the draft thread's own */
	bool skip_by_default;
	/* Of the model whose layers are left out; n_layers 0: not known. The draft thread writes it, under
	 * mutex */
	struct model_config target;
	struct draft_model *skip; /* set under mutex; the draft thread's own */
	struct worker_device device;
	struct peer_taps taps; /* the hidden states that the head reads. Under mutex */
	bool met; /* it is known whether there is a head. Under mutex */
	struct draft_model *head; /* set under mutex; the draft thread's own */
	/* called when refusal or taps have changed, by any thread */
	void (*on_change)(void *arg);
	void *arg;
	_Atomic bool mail_waiting;
	_Atomic uint64_t beat_ns;
	struct worker_counts counts;
	struct drafter_config next; /* settings to take over. Under mutex */
	_Atomic bool tuned; /* `next` is to be taken over */
	/* From here on the draft thread's own. */
	struct drafter_config own;
	struct session_view view;
	struct region draft, supports_region, policy, weights;
	struct draft_rings rings;
	struct draft_supports supports; /* a view of supports_region */
	struct policy_page *page;
	struct draft_model *model;
	struct head_states states;
	struct draft_context context;
	struct tree tree; /* of the context */
	struct hints hints;
	struct grammars grammars;
	bool skip_tried; /* layer-skip was opened or refused, for this target and these settings */
	/* [LIMIT_SESSIONS], owned. Entries that were never used take no memory. */
	struct draft_session *sessions;
	struct draft_item items[LIMIT_RUNNING];
	struct draft_request asked[LIMIT_RUNNING];
	struct draft_reply replies[LIMIT_RUNNING];
	uint32_t n_items;
	struct draft_reply foreseen; /* scratch for a report of foresight */
};

/* Loads the draft model, if one is configured. config is copied. */
int worker_init(struct worker *worker, const struct drafter_config *config,
	void (*on_change)(void *arg), void *arg, struct error *err);
int worker_start(struct worker *worker, struct error *err);
/* Stops the thread, if it runs, and frees everything. */
void worker_exit(struct worker *worker);
/* Hands over a mapped region and clears *region. Loop thread. */
void worker_give(struct worker *worker, enum worker_region which, struct region *region);
/* Hands over changed, resolved settings, which hold from the next round on. Loop thread. */
void worker_tune(struct worker *worker, const struct drafter_config *config);
/* Copies to `out` why the draft model is not used ("" when it is, or there is none). Any thread. */
void worker_refusal(struct worker *worker, char *out, size_t bytes);
/* The hidden states that the drafter wants of the verifier. Any thread. */
void worker_taps(struct worker *worker, struct peer_taps *out);
/* What the head's passes amount to. method DRAFT_NONE: there is none, and the rest is not set.
 * False: that is not known yet. Any thread. */
struct worker_head {
	enum draft_method method;
	const char *kernels; /* the CPU's */
	uint64_t passes, tokens, fast_tokens, evictions;
	/* experts that it read where the expert-cache has them, and from the model's file */
	uint64_t from_slots, from_file;
};
bool worker_head(struct worker *worker, struct worker_head *out);
/* The same of the target's layers that draft; method DRAFT_NONE: nobody has asked for them, or they
 * cannot be used. kept, of: how many layers draft, of how many; refusal: why none do, or "". Any
 * thread. */
struct worker_skip {
	struct worker_head passes;
	uint32_t kept, of;
	char refusal[400];
};
void worker_skip(struct worker *worker, struct worker_skip *out);
/* For the watchdog: true when the thread has gone round its loop within the last 10 s. */
bool worker_alive(void *worker);
