/*
 * What the parts of the registry of knobs share. No other file includes it, and all of it belongs
 * to the loop thread.
 *
 * - daemon_knobs.c checks a batch of changes.
 * - knobs_apply.c puts it in force, for good or until it is taken back.
 * - knobs_restart.c records what a restart has lost.
 * - knobs_reverts.c ends temporary changes.
 * - knobs_drop_in.c and knobs_drop_in_text.c store lasting changes.
 * - knobs_journal.c records who changed what.
 * - knobs_messages.c answers the admin endpoint.
 */
#pragma once

#include "proto/envelope.pb-c.h"
#include "shared/base/limits.h"
#include "shared/base/new_file.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/daemon_knobs.h"

enum {
	KNOBS_BATCH_MAX = 64, /* changes in one batch */
	KNOBS_REVERTS_MAX = 256, /* temporary changes that run at once */
	KNOBS_EVENTS =
		512, /* events of the journal kept in memory, and so the least that the file has */
	KNOBS_TEXT_MAX = 256, /* bytes of a value in the journal; the rest is cut */
};
#define KNOBS_FOR_NS_MAX (UINT64_C(30) * 86400 * 1000000000)

struct knob_who {
	bool has_uid; /* uid and pid come from the kernel */
	uint32_t uid, pid;
	char program[LIMIT_NAME]; /* "" = unknown */
};

struct knob_change {
	const char *name, *value;
	const char *expected; /* value that it must have now; NULL: any */
	const struct config_key *key; /* NULL: look it up by its name */
};

/* Changes that succeed or fail together. Borrows its texts. */
struct knob_batch {
	struct knob_change changes[KNOBS_BATCH_MAX];
	size_t n;
	bool reset, persist;
	bool at_start; /* takes effect at the next start only; used with persist */
	uint64_t for_ns, session; /* for_ns: 0 = not temporary; session: 0 = all sessions */
	const char *what; /* for the journal: "set", "reset", "revert", "restart" */
	struct knob_who who;
};

/* The outcome of one change. */
struct knob_outcome {
	const struct config_key *key;
	char *old_value, *new_value; /* malloc'd */
	/* malloc'd: the stored value that a reset removes from the drop-in; NULL: none */
	char *removed;
	/* malloc'd: the value that an earlier temporary change would have returned to and no longer
	 * does; NULL: there was no such change */
	char *stays_for;
	char *base; /* the value to revert to; NULL: the value configured for all, or no revert */
	/* of a session: its value equalled that of all sessions, and it reverts to following them
	 */
	bool follows;
	bool at_start; /* takes effect at the next start */
	/* nothing changes: the key had this value permanently, and the batch neither stores it nor
	 * limits its time */
	bool idle;
	const char *note; /* "" or a constant string */
};

struct knob_outcomes {
	struct knob_outcome of[KNOBS_BATCH_MAX];
	size_t n;
};
void knobs_outcomes_free(struct knob_outcomes *outcomes);

/* A temporary change that will end. */
struct knob_revert {
	const struct config_key *key;
	/* reverts of one serial were made together and revert together */
	uint64_t session, serial, due_ns;
	char *value; /* malloc'd; NULL: revert to the value configured for all */
};

struct knob_event {
	uint64_t time_ns; /* CLOCK_REALTIME */
	uint64_t session, for_ns;
	bool persist, at_start; /* at_start: the new value takes effect only at the next start */
	struct knob_who who;
	char what[12];
	char *name, *old_value, *new_value, *reason; /* malloc'd; NULL only when memory ran out */
	char *removed; /* malloc'd; NULL: no stored value was removed */
};

struct knob_journal {
	char path[300];
	int fd; /* -1: not open */
	size_t bytes; /* size of the file */
	bool failing; /* the last write failed, and the log says so */
	struct knob_event events[KNOBS_EVENTS];
	uint64_t n; /* events ever added; the newest KNOBS_EVENTS are kept */
};

struct knobs {
	struct daemon *daemon;
	const char *process;
	struct daemon_knobs o;
	size_t n_keys;
	/* config_bytes each. next: the changed copy. now: the session's configuration that it was
	 * copied from. started: as at the start. scratch: for reading files and values. */
	void *next, *now, *started, *scratch;
	/* For the batch that is applied. before: the configuration it changes. wanted: the changed
	 * copy, including the keys that wait for the next start. */
	void *before, *wanted;
	/* the drop-in's values of the keys marked in `given`, while a list is answered */
	void *stored;
	bool *given; /* [n_keys]: the file sets the key */
	/* scratch holds the configuration of the next start, while a list is answered */
	bool next_start_known;
	uint64_t n_changes, serial;
	struct {
		uint64_t id, until_ns; /* id 0 = none */
		struct knob_who who;
		/* of who.pid, polled by the loop; readable when that process has ended; -1: none */
		int pidfd;
	} reserved;
	/* A batch that is in force and may still be taken back. Until it is committed, earlier
	 * temporary changes continue and the drop-in is unchanged. */
	struct {
		bool is;
		bool changed; /* the batch changed values in force, and not only stored ones */
		bool prepared; /* the next drop-in has been written beside the present one */
		struct knob_batch batch; /* without its changes, whose texts are freed */
		struct knob_outcomes outcomes;
	} applied;
	struct knob_revert reverts[KNOBS_REVERTS_MAX];
	size_t n_reverts;
	int timer; /* 0 = none */
	/* FILE.d, and the drop-in; file is "" when lasting changes are refused */
	char directory[4096], file[4200];
	struct new_file fresh; /* the next drop-in, while applied.prepared */
	bool fresh_blank; /* it sets nothing, so the drop-in will be removed */
	struct knob_journal journal;
};

/* daemon_knobs.c. Refuses everything that can be refused before apply is called. *now: the
 * configuration that the batch changes. knobs->next: the copy with the changes. outcomes: empty
 * before; the caller frees it, whatever is returned. */
int knobs_plan(struct knobs *knobs, const struct knob_batch *batch, const void **now,
	struct knob_outcomes *outcomes, struct error *err);
/* The value that an earlier temporary change no longer returns to because of this one, for the
 * reply; NULL: none. */
const char *knobs_stays_for(const struct knob_outcome *outcome);
/* The configuration of all sessions (session 0) or of one session; NULL with the reason. Valid
 * until the next call. */
const void *knobs_config(struct knobs *knobs, uint64_t session, struct error *err);
/* Reads into scratch what the next start will use, from the files and the command line. False when
 * the files cannot be read. */
bool knobs_next_start(struct knobs *knobs);

/* knobs_apply.c. Checks a batch: refuses everything that knobs_set would, as far as that is known
 * without doing it. */
int knobs_try(struct knobs *knobs, const struct knob_batch *batch, struct error *err);
/* Applies and commits a batch. outcomes: the caller frees it, whatever is returned. */
int knobs_set(struct knobs *knobs, const struct knob_batch *batch, struct knob_outcomes *outcomes,
	struct error *err);
/* The same in two steps, for one batch at a time. knobs_apply puts the batch in force until it is
 * committed or taken back. If knobs_commit fails, the batch has been taken back. */
int knobs_apply(struct knobs *knobs, const struct knob_batch *batch, struct error *err);
int knobs_commit(struct knobs *knobs, struct knob_outcomes *outcomes, struct error *err);
/* Takes the applied batch back; does nothing when none is applied. why: for the journal, which
 * records the values that had been in force. */
void knobs_take_back(struct knobs *knobs, const char *why);
/* Reserves the knobs for this administrator, or renews the reservation, for for_ns and no longer
 * than the administrator's process lives. */
void knobs_reserve(struct knobs *knobs, uint64_t id, const struct knob_who *who, uint64_t for_ns);
void knobs_forget_holder(struct knobs *knobs);
/* The administrator is done: takes back what was applied and not committed. */
void knobs_release(struct knobs *knobs, const char *why);
/* True when an administrator other than `id` has reserved the knobs. */
bool knobs_reserved(struct knobs *knobs, uint64_t id);

/* knobs_restart.c. Call at the start: where a knob's value differs from the journal's last entry,
 * the change ended with the previous process. Records that. */
void knobs_restarted(struct knobs *knobs);

/* knobs_reverts.c. The pending revert of a key; NULL: none. */
const struct knob_revert *knobs_revert_of(
	const struct knobs *knobs, const struct config_key *key, uint64_t session);
/* -ENOSPC when there is no room for n more reverts. */
int knobs_reverts_room(const struct knobs *knobs, size_t n, struct error *err);
/* Call when a batch is in force: cancels earlier reverts of its keys and starts its own. Takes over
 * the outcomes' `base` texts. */
void knobs_reverts_replace(
	struct knobs *knobs, const struct knob_batch *batch, struct knob_outcomes *outcomes);
void knobs_reverts_schedule(struct knobs *knobs);
/* Calls `stays` of struct daemon_knobs. Uses scratch. */
void knobs_reverts_tell(struct knobs *knobs);
void knobs_reverts_free(struct knobs *knobs);

/* knobs_drop_in.c. The name sorts after the names that administrators and packages usually choose.
 */
#define KNOBS_DROP_IN "90-knobs.conf"
void knobs_drop_in_init(struct knobs *knobs);
/* Reads which keys the drop-in sets into knobs->given, and their values into knobs->scratch. */
int knobs_drop_in_read(struct knobs *knobs, struct error *err);
/* Writes the next drop-in beside the present one. The keys of the outcomes get their values from
 * config; `without` removes them instead, and sets `removed` of their outcomes. */
int knobs_drop_in_prepare(struct knobs *knobs, struct knob_outcomes *outcomes, const void *config,
	bool without, struct error *err);
/* knobs_drop_in_text.c: edits a drop-in's text in the same way. Returns malloc'd text, NULL without
 * memory. *blank: the result has nothing that anybody would miss. */
char *knobs_drop_in_edit(const char *text, const struct knob_outcomes *outcomes, const void *config,
	bool without, bool *blank);
/* Replace the present drop-in with the prepared one, or discard the prepared one. */
int knobs_drop_in_commit(struct knobs *knobs, struct error *err);
void knobs_drop_in_abandon(struct knobs *knobs);

/* knobs_journal.c */
void knobs_journal_open(struct knob_journal *journal, const char *runtime_dir, const char *process);
void knobs_journal_close(struct knob_journal *journal);
/* Adds one event per outcome that is not idle. Never fails: an event that cannot be written stays
 * in memory, and the log says so once. */
void knobs_journal_add(struct knob_journal *journal, const struct knob_batch *batch,
	const struct knob_outcomes *outcomes, const char *reason);
/* Changes a text, in place, to the form that the journal stores. */
void knobs_journal_cut(char *text);
/* The i-th oldest event that is kept; i < knobs_journal_count. */
size_t knobs_journal_count(const struct knob_journal *journal);
const struct knob_event *knobs_journal_at(const struct knob_journal *journal, size_t i);

/* knobs_messages.c. True when the request was about knobs; the reply is then filled in. */
bool knobs_answer(struct knobs *knobs, const struct bus_address *from,
	const Outrider__Envelope *request, Outrider__Envelope *reply);
