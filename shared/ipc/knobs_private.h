/*
 * What the parts of the registry share: daemon_knobs.c (the check of a batch), knobs_apply.c (its being in force, for good or
 * until it is taken back), knobs_restart.c (what a start has lost), knobs_reverts.c (changes for a time), knobs_drop_in.c and
 * knobs_drop_in_text.c (lasting ones), knobs_journal.c (who changed what), knobs_messages.c (the admin endpoint). Nobody else includes it. All of
 * it is the loop thread's.
 */
#pragma once

#include "proto/envelope.pb-c.h"
#include "shared/base/limits.h"
#include "shared/base/new_file.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/daemon_knobs.h"

enum {
	KNOBS_BATCH_MAX = 64, /* changes of one batch */
	KNOBS_REVERTS_MAX = 256, /* changes for a time that run at once */
	KNOBS_EVENTS =
		512, /* of the journal that are kept in memory, and so at least in the file */
	KNOBS_TEXT_MAX = 256, /* of a value in the journal; the rest is cut */
};
#define KNOBS_FOR_NS_MAX (UINT64_C(30) * 86400 * 1000000000)

struct knob_who {
	bool has_uid; /* uid and pid are the kernel's word */
	uint32_t uid, pid;
	char program[LIMIT_NAME]; /* "" = not known */
};

struct knob_change {
	const char *name, *value;
	const char *expected; /* NULL: whatever it is now */
	const struct config_key *key; /* NULL: to be found by its name */
};

/* Borrows its texts. */
struct knob_batch {
	struct knob_change changes[KNOBS_BATCH_MAX];
	size_t n;
	bool reset, persist;
	bool at_start; /* only at the next start; with persist */
	uint64_t for_ns, session; /* 0 = to stay; all */
	const char *what; /* for the journal: "set", "reset", "revert", "restart" */
	struct knob_who who;
};

/* What became of one change. */
struct knob_outcome {
	const struct config_key *key;
	char *old_value, *new_value; /* malloc'd */
	char *removed; /* malloc'd: the stored value that a reset takes out of the drop-in; NULL: none */
	char *stays_for; /* malloc'd: what an earlier change for a time does not go back to any more; NULL: there was none */
	char *base; /* what it reverts to; NULL: what is configured for all (or it does not) */
	bool follows; /* a session's value that was no other than all sessions' */
	bool at_start; /* in force at the next start */
	bool idle; /* it was that before, to stay, and will be no longer or surer */
	const char *note; /* "" or a constant */
};

struct knob_outcomes {
	struct knob_outcome of[KNOBS_BATCH_MAX];
	size_t n;
};
void knobs_outcomes_free(struct knob_outcomes *outcomes);

/* A change that ends by itself. */
struct knob_revert {
	const struct config_key *key;
	uint64_t session, serial, due_ns; /* those of one serial were made, and revert, together */
	char *value; /* malloc'd; NULL: what is configured for all */
};

struct knob_event {
	uint64_t time_ns; /* CLOCK_REALTIME */
	uint64_t session, for_ns;
	bool persist,
		at_start; /* at_start: the new value is in force only from the next start on */
	struct knob_who who;
	char what[12];
	char *name, *old_value, *new_value, *reason; /* malloc'd; NULL only where memory failed */
	char *removed; /* malloc'd; NULL: nothing stored was taken out */
};

struct knob_journal {
	char path[300];
	int fd; /* -1: not open */
	size_t bytes; /* in the file */
	bool failing; /* the last write failed, and that was said */
	struct knob_event events[KNOBS_EVENTS];
	uint64_t n; /* counts on; the newest KNOBS_EVENTS are kept */
};

struct knobs {
	struct daemon *daemon;
	const char *process;
	struct daemon_knobs o;
	size_t n_keys;
	/* Of config_bytes each: the changed copy; what it is a change of (a session's); as it was at the start; for reading
	 * files and values. */
	void *next, *now, *started, *scratch;
	/* Of the batch that is applied: what it is a change of, and the changed copy with what waits for the next start. */
	void *before, *wanted;
	void *stored; /* what the drop-in says of the keys that are given, while a list is answered */
	bool *given; /* [n_keys], for files */
	bool next_start_known; /* scratch has it, while a list is answered */
	uint64_t n_changes, serial;
	struct {
		uint64_t id, until_ns; /* id 0 = none */
		struct knob_who who;
		int pidfd; /* of who.pid, in the loop: readable when it has ended; -1: none */
	} reserved;
	/* A batch that is in force and may still be taken back: earlier changes for a time go on, the drop-in is as it was. */
	struct {
		bool is;
		bool changed; /* something else is in force by it, and not only stored */
		bool prepared; /* the next drop-in lies beside the one there is */
		struct knob_batch batch; /* without its changes, whose texts are gone */
		struct knob_outcomes outcomes;
	} applied;
	struct knob_revert reverts[KNOBS_REVERTS_MAX];
	size_t n_reverts;
	int timer; /* 0 = none */
	char directory[4096], file[4200]; /* FILE.d, the drop-in; "" */
	struct new_file fresh; /* the next drop-in, while applied.prepared */
	bool fresh_blank; /* it says nothing: there is to be none */
	struct knob_journal journal;
};

/* daemon_knobs.c. Everything that can be refused, but for what apply refuses. *now: what the batch is a change of; knobs->next:
 * with it. outcomes: empty; to be freed whatever is returned. */
int knobs_plan(struct knobs *knobs, const struct knob_batch *batch, const void **now,
	struct knob_outcomes *outcomes, struct error *err);
/* What the change took from an earlier one for a time, to be said: the value that it does not go back to any more; NULL: nothing. */
const char *knobs_stays_for(const struct knob_outcome *outcome);
/* The configuration of all (session 0) or of one session; NULL with the reason. Valid until the next call. */
const void *knobs_config(struct knobs *knobs, uint64_t session, struct error *err);
/* What the next start will find, by the files and the command line, into scratch; false when the files cannot be read. */
bool knobs_next_start(struct knobs *knobs);

/* knobs_apply.c. Everything a set would refuse, as far as it is known without doing it. */
int knobs_try(struct knobs *knobs, const struct knob_batch *batch, struct error *err);
/* The batch, for good. outcomes: to be freed whatever is returned. */
int knobs_set(struct knobs *knobs, const struct knob_batch *batch, struct knob_outcomes *outcomes,
	struct error *err);
/* The same in two steps. Applied it is in force, until it is committed or taken back; one at a time. Of one that cannot be
 * committed nothing is left. */
int knobs_apply(struct knobs *knobs, const struct knob_batch *batch, struct error *err);
int knobs_commit(struct knobs *knobs, struct knob_outcomes *outcomes, struct error *err);
/* Nothing where none is applied. why: for the journal, which has what was in force. */
void knobs_take_back(struct knobs *knobs, const char *why);
/* The knobs are this administrator's for so long, or his again, and no longer than his process lives. */
void knobs_reserve(struct knobs *knobs, uint64_t id, const struct knob_who *who, uint64_t for_ns);
void knobs_forget_holder(struct knobs *knobs);
/* He has done: what he applied and did not commit is taken back. */
void knobs_release(struct knobs *knobs, const char *why);
/* Whether another than id has reserved the knobs now. */
bool knobs_reserved(struct knobs *knobs, uint64_t id);

/* knobs_restart.c. Writes down where what is in force is not what the journal said last: what was changed ended with the
 * process before. */
void knobs_restarted(struct knobs *knobs);

/* knobs_reverts.c */
const struct knob_revert *knobs_revert_of(
	const struct knobs *knobs, const struct config_key *key, uint64_t session);
/* Whether there is room for so many more. */
int knobs_reverts_room(const struct knobs *knobs, size_t n, struct error *err);
/* After a change is in force: earlier reverts of its keys are void, and its own begin. Takes the outcomes' bases over. */
void knobs_reverts_replace(
	struct knobs *knobs, const struct knob_batch *batch, struct knob_outcomes *outcomes);
void knobs_reverts_schedule(struct knobs *knobs);
/* Says what stays (struct daemon_knobs). Uses scratch. */
void knobs_reverts_tell(struct knobs *knobs);
void knobs_reverts_free(struct knobs *knobs);

/* knobs_drop_in.c. The name comes after what administrators and packages usually write. */
#define KNOBS_DROP_IN "90-knobs.conf"
void knobs_drop_in_init(struct knobs *knobs);
/* Which keys the drop-in sets, in knobs->given, with their values in knobs->scratch. */
int knobs_drop_in_read(struct knobs *knobs, struct error *err);
/* Writes the next drop-in beside the one there is: with the keys of the outcomes as in config, or without them, when their
 * `removed` is set. */
int knobs_drop_in_prepare(struct knobs *knobs, struct knob_outcomes *outcomes, const void *config,
	bool without, struct error *err);
/* knobs_drop_in_text.c: a drop-in's text with the keys of the outcomes as in config, or without them; malloc'd, NULL without memory.
 * *blank: nobody would miss it. */
char *knobs_drop_in_edit(const char *text, const struct knob_outcomes *outcomes, const void *config,
	bool without, bool *blank);
/* Puts what was prepared in the place of the one there is, or throws it away. */
int knobs_drop_in_commit(struct knobs *knobs, struct error *err);
void knobs_drop_in_abandon(struct knobs *knobs);

/* knobs_journal.c */
void knobs_journal_open(struct knob_journal *journal, const char *runtime_dir, const char *process);
void knobs_journal_close(struct knob_journal *journal);
/* One event per outcome; never fails: what cannot be written is kept in memory, and said once. */
void knobs_journal_add(struct knob_journal *journal, const struct knob_batch *batch,
	const struct knob_outcomes *outcomes, const char *reason);
/* A text as the journal has it, in place. */
void knobs_journal_cut(char *text);
/* The i-th oldest that is kept; i < knobs_journal_count. */
size_t knobs_journal_count(const struct knob_journal *journal);
const struct knob_event *knobs_journal_at(const struct knob_journal *journal, size_t i);

/* knobs_messages.c: whether the request was one about knobs; the reply is then filled in. */
bool knobs_answer(struct knobs *knobs, const struct bus_address *from,
	const Outrider__Envelope *request, Outrider__Envelope *reply);
