/*
 * The client front: sessions as clients see them, on the daemon's loop thread. It reads the session pages while the
 * engine writes them, sends what each client has granted, and never waits for a client. handlers.c is its message
 * switch, admission.c how a request becomes a session, places.c who gives way to whom, admin.c its answers to administrators,
 * links.c its connections to the other processes.
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

/* One session's client. Index = that of slot and page. */
struct front_session {
	bool used;
	uint64_t uid;
	bool attached; /* client is an address that answered last time */
	bool done_sent;
	bool full; /* its socket took the last message not: it reads too slowly, or not at all */
	bool yielding; /* slot.yield was set: the engine lets go of it soon */
	struct bus_address client;
	uint64_t request_id;
	uint32_t sent; /* output tokens given to the socket */
	uint32_t
		fed; /* output tokens whose text went through the stream; >= sent once it caught up */
	uint32_t credit;
	char *pending; /* text that has not been sent yet */
	size_t n_pending, capacity;
	uint64_t heard_ns, done_ns;
	uint64_t blocked_ns; /* since when only its client can make it go on; 0: it is not so */
};

struct options;

struct front {
	struct daemon *daemon;
	const struct verifier_config *config;
	const struct model *model;
	const struct tokenizer *tokenizer;
	struct constraint_vocab vocab;
	const struct backend *backend;
	struct regions *regions;
	const struct region *packed; /* the weights', its header NULL without one */
	struct engine *engine;
	struct bus_server *socket;
	struct slot slots[LIMIT_SESSIONS];
	struct front_session sessions[LIMIT_SESSIONS];
	/* A bit for each index. The engine sets those of sessions that have something to be looked at (news); of the others nobody
	 * looks but the timer. */
	_Atomic uint64_t changed[BITS_WORDS(LIMIT_SESSIONS)];
	uint64_t again[BITS_WORDS(LIMIT_SESSIONS)]; /* could not be sent all that is there */
	uint64_t free[BITS_WORDS(LIMIT_SESSIONS)]; /* no session has it */
	uint32_t n_used, n_yielding;
	struct uids uids;
	uint64_t alive_seen;
	uint64_t admitted; /* sessions, ever: the newest one's number */
	struct inbox inbox;
	struct reader *reader;
	struct shelf shelf;
	struct rate rate; /* of output tokens */
	uint64_t clients; /* that had sessions: the newest one's number */

	struct broker *broker;
	struct link *cache_link, *policy_link; /* set before the engine starts */
	uint64_t experts_uid, hints_uid;
	struct slots_needs
		needs; /* what the expert-cache was told last; set before the links are made */
	uint64_t there; /* the verifier's memory at the last tick, */
	uint32_t there_ticks; /* and for how many it has been the same */
	struct region policy_region;
	struct policy_page *policy;
	bool drafter_here;
	struct proof proof; /* initialised before the engine is made */
	struct gguf_news news; /* as front_watch knows them */
	uint64_t file_state; /* gguf_state, as the log knows it */
	bool proof_awaited; /* the log is to say when all bytes were compared */
	bool model_lost; /* and the log says so */
	uint64_t lost_ns;
	char state[384];
};

/* Before anything else: all places are free. */
void front_init(struct front *front);
/* Pages a predecessor left: goes on with them where they are sound. After engine_create, before engine_start. */
void front_recover(struct front *front);
void front_close(struct front *front); /* frees what sessions hold; pages stay */

/* Index of a session, or -1. */
int front_find(const struct front *front, uint64_t uid);
/* Fills page and slot; what the reading has for the slot is taken from it. */
int front_begin(struct front *front, uint32_t index, uint64_t uid, struct reading *reading,
	struct error *err);
/* From now on the session's tokens go to this client, from output token `have` on. A finished answer whose records are lost
 * is the engine's again, which makes those. */
void front_bind(struct front *front, uint32_t index, const struct bus_address *client,
	uint64_t request_id, uint32_t have, uint32_t credit);
void front_credit(struct front *front, uint32_t index, uint32_t credit);
/* The same for a session on the shelf, which leaves it for the place `index`. -ENOMEM: it stays there. */
int front_return(struct front *front, uint32_t index, struct shelved *kept, struct error *err);
/* Of a session that the engine has done with, or let go of: page and slot are free from then on. */
void front_release(struct front *front, uint32_t index);
/* The same, but what its page holds is kept on the shelf. */
void front_shelve(struct front *front, uint32_t index);

/* For bus_on_crowded: a client whose answer is on its way, or whose request waits, keeps its connection, however long it takes. */
bool front_keeps(void *arg, const struct bus_address *client);
/* For bus_on_gone: its sessions stand aside for others until it comes back, and its requests that wait are dropped: it asks again. */
void front_gone(void *arg, const struct bus_address *client);

/* Daemon handlers; arg is the front. */
void front_pump(void *arg); /* the engine has something */
void front_tick(void *arg); /* timer: clients that went silent, finished sessions, state */
bool front_alive(void *arg);

/* Output tokens that a session has. */
static inline uint32_t front_outputs(const struct slot *slot)
{
	return journal_n_tokens(slot->page) - slot->page->n_prompt;
}

/* places.c */

/* Looks whether a session's client is gone, or has taken nothing for a while: then others go first. */
void places_look(struct front *front, uint32_t index, uint64_t now_ns);
/* Gives the session its client's number. */
void places_number(struct front *front, uint32_t index);
/* What was found out while places are given out to all that wait for one: it stays so until the next time. */
struct places_round {
	bool full; /* nothing is free, and nothing can be made so at once */
	bool no_victim; /* nor will anything be */
	bool counted;
	int64_t waiting; /* of places_waiting(front, 0) */
};
/* How many sessions wait behind those that fit in a batch, these many more counted in; negative: so many fit. */
int64_t places_waiting(struct front *front, uint32_t more);
/* A free index. Others are made to give way where there is none: finished sessions whose clients have got their answers, then
 * those whose clients are gone or take nothing. -EINPROGRESS: one is giving way; before: how many wait for one already.
 * -EAGAIN with the reason. */
int places_take(
	struct front *front, uint32_t before, struct places_round *round, struct error *err);
/* Takes a session back if the engine has let go of it. */
void places_settle(struct front *front, uint32_t index);

/* admission.c */

/* A Generate of a session that is not known. */
void admission_generate(struct front *front, const struct bus_address *from, uint64_t request_id,
	const Outrider__Generate *generate);
/* A question about texts or the model: a text thread answers. */
void admission_ask(struct front *front, const struct bus_address *from, uint64_t request_id,
	const Outrider__TextRequest *question);
/* A client of a session on the shelf has asked for it. */
void admission_return(struct front *front, const struct bus_address *from, uint64_t request_id,
	struct shelved *kept, uint32_t have, uint32_t credit);
/* Brings back sessions on the shelf whose clients take their answers again. */
void admission_resume(struct front *front);
/* For shelf.dropped: its client is told that the session is over. */
void admission_dropped(void *arg, const struct shelved *kept);
/* Drops the requests of a connection that is gone. */
void admission_gone(struct front *front, const struct bus_address *client);
/* Ends what has not begun. */
void admission_cancel(struct front *front, struct inbox_entry *entry);
/* Gives out places and texts to be read. */
void admission_work(struct front *front);
/* What is needed to read the text of a request. */
struct request_limits admission_limits(struct front *front);

/* stream.c: sends one session what it may have; what the client does not take is tried again later. */
void stream_session(struct front *front, uint32_t index);
/* Its client is gone: the session is kept for it to come back. */
void stream_detach(struct front *front, uint32_t index);
/* Begins the stream again at output token `from`. */
void stream_reset(struct front *front, uint32_t index, uint32_t from);
/* Tells its client that the session is here. */
void stream_accepted(struct front *front, uint32_t index);
/* The same of a session that has no place yet. */
void stream_accepted_entry(
	struct front *front, const struct inbox_entry *entry, uint32_t n_prompt, uint32_t n_out);
/* Tells it that it has ended before it began, or before it went on. */
void stream_cancelled(struct front *front, const struct bus_address *client, uint64_t request_id,
	uint64_t uid, uint32_t n_out);

/* handlers.c: daemon handler of the client socket. */
void handlers_client(void *arg);
/* A refusal; uid 0: about no session. */
void handlers_fail(struct front *front, const struct bus_address *to, uint64_t request_id,
	uint64_t uid, int rc, const struct error *err);

/* knobs.c: the settings that change while the process runs. options: what main was started with. After engine_create. */
int knobs_open(struct front *front, struct verifier_config *config, const struct options *options,
	struct error *err);

/* admin.c: daemon_admin handler, and status details. */
int admin_handle(void *arg, const Outrider__Envelope *request, Outrider__Envelope *reply);
void admin_detail(void *arg, struct daemon_details *to);

/* links.c: the processes beside this one. */
int links_open(struct front *front, struct error *err);
void links_close(struct front *front);
bool links_cache_alive(void *arg);
int links_broker_open(struct front *front, struct error *err);
void links_state(struct front *front);
/* Now and then: tells the expert-cache what the verifier's memory has grown to. */
void links_needs(struct front *front);
