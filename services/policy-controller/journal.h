/*
 * The journal: one entry per session and iteration in a file of fixed size, the oldest overwritten, so that what happened
 * can be looked at afterwards, over restarts of this process. It is only looked at: nothing is decided from it.
 *
 * The records thread puts entries into memory (journal_add); the loop thread writes them to the file now and then
 * (journal_flush). A file that cannot be written (full or read-only disk) is said once; entries of that time are counted as
 * lost and serving goes on; the file is tried again with each flush.
 *
 * File: struct journal_head, then `capacity` entries of JOURNAL_ENTRY_BYTES; entry n lies at n modulo capacity. An entry
 * that was torn by a crash, or that somebody changed, fails its check sum and is skipped. Where records of iterations were
 * lost, on their way here or to the file, an entry of session 0 says how many: what lies on both sides of it does not join.
 */
#pragma once

#include "services/policy-controller/policy.h"

#include <pthread.h>

/* JOURNAL_PENDING: sixteen sessions of a small model make ten thousand entries a second, the file is written each second, and
 * who was stopped finds the records of a whole ring at once. */
enum { JOURNAL_ENTRY_BYTES = 192, JOURNAL_PENDING = 16384, JOURNAL_BYTES_MIN = 64 << 10 };

struct journal_entry {
	uint64_t check; /* of what follows */
	uint64_t number; /* counts entries of this file, from 1 */
	uint64_t time_ns; /* when the iteration ended, CLOCK_REALTIME: the file outlives a boot */
	uint64_t session,
		iteration; /* session 0: a loss, of which number, time and `lost` are said */
	uint32_t n_context; /* committed tokens after it */
	uint8_t k, depth, accepted, emitted;
	uint8_t phase; /* enum phase, after it */
	uint8_t k_next; /* what the policy asks for now */
	uint8_t k_fixed, method;
	uint32_t batch_tokens, prefill_tokens;
	uint32_t unique_experts, expert_hits, expert_misses;
	union {
		uint64_t expert_bytes;
		uint64_t lost; /* iterations, of whatever sessions */
	};
	uint32_t draft_us, verify_us, sample_us, iteration_us;
	float base_us; /* an iteration at K = 0; 0: not measured */
	float utility, etr; /* as the policy page says; utility 0: not measured */
	/* As in the record: a draft that was kept back, and the confidences of that one or of the iteration's own. */
	uint8_t foreseen, foreseen_drafted, foreseen_right, foreseen_method;
	uint16_t batch_sessions;
	uint16_t drafted; /* nodes; depth: of the path that the confidences are of */
	uint8_t confidence[LIMIT_DRAFT_DEPTH];
	uint8_t pad[13];
};
static_assert(sizeof(struct journal_entry) == JOURNAL_ENTRY_BYTES, "an entry is three cache lines");

struct journal_file {
	int fd; /* -1: not open */
	uint64_t capacity; /* entries it has room for */
};

struct journal {
	char path[4200]; /* "" = none is kept */
	struct journal_file file;
	uint64_t next; /* number of the next entry */
	bool failing; /* said already */
	pthread_mutex_t mutex; /* pending, n_pending, lost, unmarked */
	uint32_t n_pending;
	uint64_t lost;
	uint64_t unmarked; /* iterations that were lost since an entry last said so */
	/* With time_ns of CLOCK_MONOTONIC. */
	struct journal_entry pending[JOURNAL_PENDING], writing[JOURNAL_PENDING];
};

/* Opens or creates the file, `bytes` long, JOURNAL_BYTES_MIN or more; path "" for none. One of another size, or that
 * is no journal, is kept as PATH.old, which is said, and a new one begun. A file that cannot be had is no error: it is
 * said, and tried again with each flush. */
void journal_open(struct journal *journal, const char *path, uint64_t bytes);
/* Writes what waits. */
void journal_close(struct journal *journal);

/* What an iteration was, and what the policy made of it. state may be NULL: the session is not the policy's. */
void journal_add(struct journal *journal, const struct iteration_record *record,
	const struct policy_state *state);
/* n records of iterations were lost before they came here; they would have come now. */
void journal_add_loss(struct journal *journal, uint64_t n);
void journal_flush(struct journal *journal);
/* Iterations whose entries never reached the file. */
uint64_t journal_lost(struct journal *journal);

/* The newest entries of a session (0: of all), at most max, oldest first; those that wait are flushed before. Returns
 * how many. Loop thread. */
uint32_t journal_read(
	struct journal *journal, uint64_t session, struct journal_entry *out, uint32_t max);

/* A place where iterations are missing, of whatever sessions. */
struct journal_loss {
	uint64_t number; /* entries above it came after the loss */
	uint64_t time_ns; /* when it was noticed, CLOCK_REALTIME */
	uint64_t lost;
	uint64_t iteration; /* the newest before it; 0: the file has none */
};
/* The newest losses above a number, at most max, oldest first. Returns how many. Loop thread. */
uint32_t journal_losses(
	struct journal *journal, uint64_t above, struct journal_loss *out, uint32_t max);

/* All iterations of a file that is not written meanwhile, or of a copy, oldest first; *out is freed by the caller. The file is
 * only read, and not trusted: what fails its check or cannot have happened is skipped. -ENOENT and the like, -EINVAL: not a
 * journal, or nothing in it. */
int journal_load(const char *path, struct journal_entry **out, size_t *n, struct error *err);
