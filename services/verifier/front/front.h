/*
 * The client front: sessions as clients see them, on the daemon's loop thread. It reads the session
 * pages while the engine writes them, sends each client the tokens that the client has granted, and
 * never waits for a client. handlers.c dispatches its messages, admission.c makes sessions of
 * requests, places.c decides which session makes room for which, stream.c sends answers, admin.c
 * answers administrators, sleep.c lets sessions sleep, links.c connects to the other processes, and knobs.c changes settings.
 */
#pragma once

#include "services/verifier/pass/engine.h"
#include "services/verifier/front/inbox.h"
#include "services/verifier/front/shelf.h"
#include "shared/base/uids.h"
#include "services/verifier/state/proof.h"
#include "shared/base/bits.h"
#include "shared/base/rate.h"
#include "shared/ipc/link.h"
#include "shared/model/gguf/gguf_watch.h"

struct backend;

/* The client's side of one session. Its slot and its page have the same index. */
struct front_session {
	bool used;
	uint64_t uid;
	bool attached; /* the address in client worked the last time */
	bool done_sent;
	/* its socket had no room for the last message: the client reads too slowly, or not at all
	 */
	bool full;
	bool yielding; /* slot.yield was set, so the engine lets go of it soon */
	struct bus_address client;
	uint64_t request_id;
	uint32_t sent; /* output tokens that the socket took */
	/* output tokens whose text went through the stream; >= sent once it has caught up */
	uint32_t fed;
	uint32_t credit;
	char *pending; /* text that is still to be sent */
	size_t n_pending, capacity;
	uint64_t heard_ns, done_ns;
	uint64_t blocked_ns; /* since when only its client could make it go on; 0: that is not so */
};

struct options;

/* The KV cache in another size, and the device's memory that it is one part of. */
struct kv_change {
	int64_t wanted; /* tokens, once there is room for them; 0: no change waits */
	bool under_way; /* the engine has `change`, and the regions */
	struct engine_kv_change change;
	uint64_t slots; /* bytes of the expert-cache's slots on the device */
	uint64_t drafter; /* bytes that the drafter may take there, as the expert-cache says */
	char slots_budget[LIMIT_NAME]; /* the setting that they follow */
};

struct front {
	struct daemon *daemon;
	char **argv; /* of the program, which may run anew (state/device.h) */
	uint32_t lost_ticks; /* since the device was lost */
	struct verifier_config *config; /* kv_change.c notes the size of the KV cache there */
	const struct model *model;
	const struct adapter *adapter; /* NULL: there is none, for this reason if one was wanted */
	char adapter_refusal[512];
	bool device_ends; /* what lies in the device's memory ends with this process (CUDA's IPC) */
	char device_refused[256]; /* why the CPU computes, although a device is set; "" */
	const struct tokenizer *tokenizer;
	struct constraint_vocab vocab;
	const struct backend *backend;
	struct regions *regions;
	/* region of the packed weights; its header is NULL if there is none */
	const struct region *packed;
	struct engine *engine;
	struct bus_server *socket;
	struct slot slots[LIMIT_SESSIONS];
	struct front_session sessions[LIMIT_SESSIONS];
	/* One bit per index. The engine sets the bits of sessions with news; the others are looked
	 * at only by the timer. */
	_Atomic uint64_t changed[BITS_WORDS(LIMIT_SESSIONS)];
	/* sessions of which not everything could be sent */
	uint64_t again[BITS_WORDS(LIMIT_SESSIONS)];
	uint64_t free[BITS_WORDS(LIMIT_SESSIONS)]; /* indices without a session */
	uint32_t n_used, n_yielding;
	struct uids uids;
	uint64_t alive_seen;
	uint64_t admitted; /* the number of the newest session; counts all there ever were */
	struct inbox inbox;
	struct reader *reader;
	struct shelf shelf;
	struct rate rate; /* output tokens per time */
	/* when a session ended last, and the mean time between two ends; 0: not known */
	uint64_t end_ns, end_interval_ns;
	uint64_t clients; /* the number of the newest client that had a session */

	struct broker *broker;
	struct link *cache_link, *policy_link; /* set before the engine starts */
	bool has_device; /* the engine was given the device's slots */
	uint64_t experts_uid, hints_uid;
	/* the needs that the expert cache was told last; set before the links are made */
	struct slots_needs needs;
	struct kv_change kv; /* kv_change.c */
	uint64_t there; /* the verifier's memory at the last tick */
	uint32_t there_ticks; /* for how many ticks it has been the same */
	struct region policy_region;
	/* the hidden states in the region that the engine fills; n_taps 0: it fills none */
	struct hidden_shape hidden;
	struct policy_page *policy;
	bool drafter_here;
	struct proof proof; /* initialised before the engine is made */
	struct gguf_news news; /* news of the file that front_watch has logged */
	uint64_t file_state; /* gguf_state that was logged */
	bool proof_awaited; /* a line is to be logged once all bytes were compared */
	bool model_lost; /* the model is lost, and that was logged */
	uint64_t lost_ns;
	char state[384];
};

/* Call before anything else. All places are free then. */
void front_init(struct front *front);
/* Takes over the pages that a predecessor left, where they are sound. After engine_create, before
 * engine_start. */
void front_recover(struct front *front);
void front_close(struct front *front); /* frees what sessions hold; the pages stay */

/* Index of a session, or -1. */
int front_find(const struct front *front, uint64_t uid);
/* Fills page and slot for a new session; moves what the reading has for the slot there. */
int front_begin(struct front *front, uint32_t index, uint64_t uid, struct reading *reading,
	struct error *err);
/* From now on the session's tokens go to this client, from output token `have` on. A finished
 * answer whose records are lost is the engine's again, which makes those. */
void front_bind(struct front *front, uint32_t index, const struct bus_address *client,
	uint64_t request_id, uint32_t have, uint32_t credit);
void front_credit(struct front *front, uint32_t index, uint32_t credit);
/* The same for a session on the shelf, which leaves the shelf for the place `index`. -ENOMEM: it
 * stays there. */
int front_return(struct front *front, uint32_t index, struct shelved *kept, struct error *err);
/* Frees page and slot of a session that the engine has finished, or has let go of. */
void front_release(struct front *front, uint32_t index);
/* The same, but the content of the page is kept on the shelf. */
void front_shelve(struct front *front, uint32_t index);

/* For bus_on_crowded: a client with an answer in progress, or with a request that waits, keeps its
 * connection, however long that takes. */
bool front_keeps(void *arg, const struct bus_address *client);
/* For bus_on_gone: others come before the client's sessions until it is back; its waiting requests
 * are dropped, because it will ask again. */
void front_gone(void *arg, const struct bus_address *client);

/* After how many ms a refused request may find room, going by how often sessions have ended; 0: that
 * is not known yet. */
uint32_t front_retry_ms(const struct front *front);

/* Handlers of the daemon; arg is the front. */
void front_pump(void *arg); /* called when the engine has news */
void front_tick(void *arg); /* timer: silent clients, finished sessions, the state line */
bool front_alive(void *arg);

/* How many output tokens a session has. */
static inline uint32_t front_outputs(const struct slot *slot)
{
	return journal_n_tokens(slot->page) - slot->page->n_prompt;
}

/* places.c */

/* Notes whether a session's client is gone, or has taken nothing for a while, so that others come
 * first. */
void places_look(struct front *front, uint32_t index, uint64_t now_ns);
/* Sets the number of the session's client. */
void places_number(struct front *front, uint32_t index);
/* Findings while places are given to all sessions that wait for one; it holds until the next round.
 */
struct places_round {
	bool full; /* nothing is free, and nothing can be freed at once */
	bool no_victim; /* nor can anything be freed later */
	bool counted;
	int64_t waiting; /* the result of places_waiting(front, 0) */
};
/* How many sessions wait beyond the sessions that fit in a batch, if there were this many more;
 * negative: so many more fit. */
int64_t places_waiting(struct front *front, uint32_t more);
/* Returns a free index. If there is none, other sessions are made to give theirs up: finished ones
 * whose clients have got their answers, then those whose clients are gone or take nothing.
 * -EINPROGRESS: one is being freed; before: how many requests wait for a place already. -EAGAIN
 * with the reason. */
int places_take(
	struct front *front, uint32_t before, struct places_round *round, struct error *err);
/* Frees a session's place if the engine has let go of it. */
void places_settle(struct front *front, uint32_t index);

/* sleep.c */

/* For how long a session is kept whose client takes nothing, or is gone; how: enum session_sleep. */
uint64_t sleep_patience(const struct front *front, uint32_t how);
/* An administrator lets a session sleep, or wakes it. Its index, or -errno with the reason. */
int sleep_tell(struct front *front, uint64_t uid, bool wake, struct error *err);
/* Call after places_look: a session whose client has taken nothing for sleep_after falls asleep, and
 * wakes when its client is back. */
void sleep_look(struct front *front, uint32_t index, uint64_t now_ns);
/* For a session whose page a predecessor left, or that was kept: it sleeps as it did. */
void sleep_restore(struct front *front, uint32_t index);

/* admission.c */

/* A Generate for a session that is not known yet. */
void admission_generate(struct front *front, const struct bus_address *from, uint64_t request_id,
	const Outrider__Generate *generate);
/* A question about texts or the model; a text thread will answer it. */
void admission_ask(struct front *front, const struct bus_address *from, uint64_t request_id,
	const Outrider__TextRequest *question);
/* A client asks for its session that is on the shelf. */
void admission_return(struct front *front, const struct bus_address *from, uint64_t request_id,
	struct shelved *kept, uint32_t have, uint32_t credit);
/* Brings back sessions on the shelf whose clients take their answers again. */
void admission_resume(struct front *front);
/* For shelf.dropped: tells the client that the session is over. */
void admission_dropped(void *arg, const struct shelved *kept);
/* Drops the requests of a connection that is gone. */
void admission_gone(struct front *front, const struct bus_address *client);
/* Ends a request that has not become a session. */
void admission_cancel(struct front *front, struct inbox_entry *entry);
/* Gives places, and texts to read, to sessions that wait. */
void admission_work(struct front *front);
/* The limits by which a request's text is read. */
struct request_limits admission_limits(struct front *front);

/* stream.c: sends a session's client what it has granted; what the socket does not take is tried
 * again later. */
void stream_session(struct front *front, uint32_t index);
/* The client is gone: keeps the session until it comes back. */
void stream_detach(struct front *front, uint32_t index);
/* Begins the stream again at output token `from`. */
void stream_reset(struct front *front, uint32_t index, uint32_t from);
/* Tells the client that its session was accepted. */
void stream_accepted(struct front *front, uint32_t index);
/* The same for a session that has no place yet. */
void stream_accepted_entry(
	struct front *front, const struct inbox_entry *entry, uint32_t n_prompt, uint32_t n_out);
/* Tells the client that its session has ended before it began, or before it went on. */
void stream_cancelled(struct front *front, const struct bus_address *client, uint64_t request_id,
	uint64_t uid, uint32_t n_out);

/* handlers.c: the daemon's handler for the client socket. */
void handlers_client(void *arg);
/* Sends a refusal; uid 0: it is about no session. */
void handlers_fail(struct front *front, const struct bus_address *to, uint64_t request_id,
	uint64_t uid, int rc, const struct error *err);

/* knobs.c: the settings that may change while the process runs. options: those of the start. After
 * engine_create. */
int knobs_open(struct front *front, struct verifier_config *config, const struct options *options,
	struct error *err);

/* admin.c: the handler daemon_admin, and the details of the status. */
int admin_handle(void *arg, const Outrider__Envelope *request, Outrider__Envelope *reply);
void admin_detail(void *arg, struct daemon_details *to);

/* links.c: the connections to the other processes. */
/* Offers and fills the region of hidden states that a predecessor left, if there is one. Before
 * engine_start. */
void links_adopt_hidden(struct front *front);
int links_open(struct front *front, struct error *err);
void links_close(struct front *front);
bool links_cache_alive(void *arg);
int links_broker_open(struct front *front, struct error *err);
void links_state(struct front *front);
/* Call from time to time: tells the expert cache how much memory the verifier has by now. */
void links_needs(struct front *front);
/* Tells it all of front->needs. */
void links_say_needs(struct front *front);
