/*
 * The journal: a file of fixed size with one entry per session and iteration, which overwrites its
 * oldest entries. It shows what happened, also before restarts of this process. Nothing is decided
 * from it.
 *
 * The records thread puts entries into memory (journal_add); the loop thread writes them to the
 * file from time to time (journal_flush). When the file cannot be written (disk full or read-only),
 * the log says so once, the entries of that time are counted as lost, and serving continues. Each
 * flush tries the file again.
 *
 * The file is a struct journal_head, followed by `capacity` entries of JOURNAL_ENTRY_BYTES; entry n
 * is at place n modulo capacity. An entry that a crash has torn, or that somebody changed, fails
 * its checksum and is skipped. Where records of iterations were lost, on their way here or to the
 * file, an entry of session 0 tells how many. The entries before and after it do not belong
 * together.
 */
#pragma once

#include "services/policy-controller/policy.h"

#include <pthread.h>

/* JOURNAL_PENDING: sixteen sessions of a small model make ten thousand entries a second, and the
 * file is written every second. After this process was stopped for a while, it finds the records of
 * a whole ring at once. */
enum { JOURNAL_ENTRY_BYTES = 192, JOURNAL_PENDING = 16384, JOURNAL_BYTES_MIN = 64 << 10 };

struct journal_entry {
	uint64_t check; /* checksum of the rest */
	uint64_t number; /* counts the entries of this file, from 1 */
	/* end of the iteration, CLOCK_REALTIME, because the file outlives a boot */
	uint64_t time_ns;
	uint64_t session,
		iteration; /* session 0: a loss; only number, time_ns and `lost` are set */
	uint32_t n_context; /* committed tokens after the iteration */
	uint8_t k, depth, accepted, emitted;
	uint8_t phase; /* enum phase, after the iteration */
	uint8_t k_next; /* what the policy asks for after it */
	uint8_t k_fixed, method;
	uint32_t batch_tokens, prefill_tokens;
	uint32_t unique_experts, expert_hits, expert_misses;
	union {
		uint64_t expert_bytes;
		uint64_t lost; /* iterations, of any sessions */
	};
	uint32_t draft_us, verify_us, sample_us, iteration_us;
	float base_us; /* time of an iteration at K = 0; 0: not measured */
	float utility, etr; /* as on the policy page; utility 0: not measured */
	/* As in the record: a draft that was kept back, and the confidences of that draft or of the
	 * iteration's own. */
	uint8_t foreseen, foreseen_drafted, foreseen_right, foreseen_method;
	uint16_t batch_sessions;
	uint16_t drafted; /* nodes; `depth` is that of the path which the confidences belong to */
	uint8_t confidence[LIMIT_DRAFT_DEPTH];
	uint8_t pad[13];
};
static_assert(sizeof(struct journal_entry) == JOURNAL_ENTRY_BYTES, "an entry is three cache lines");

struct journal_file {
	int fd; /* -1: not open */
	uint64_t capacity; /* entries that it has room for */
};

struct journal {
	char path[4200]; /* "": no journal is kept */
	struct journal_file file;
	uint64_t next; /* number of the next entry */
	bool failing; /* the log says so already */
	pthread_mutex_t mutex; /* protects pending, n_pending, lost, unmarked */
	uint32_t n_pending;
	uint64_t lost;
	uint64_t unmarked; /* lost iterations that no entry has told yet */
	/* Their time_ns is CLOCK_MONOTONIC. */
	struct journal_entry pending[JOURNAL_PENDING], writing[JOURNAL_PENDING];
};

/* Opens or creates the file. bytes: its size, at least JOURNAL_BYTES_MIN. path "": no journal. A
 * file of another size, or one that is no journal, is kept as PATH.old, with a log line, and a new
 * one is begun. A file that cannot be opened is no error: the log says so, and each flush tries
 * again. */
void journal_open(struct journal *journal, const char *path, uint64_t bytes);
/* Writes the waiting entries. */
void journal_close(struct journal *journal);

/* Adds an iteration and what the policy made of it. state may be NULL: the policy does not know the
 * session. */
void journal_add(struct journal *journal, const struct iteration_record *record,
	const struct policy_state *state);
/* Tells that n records of iterations were lost before they came here, after the entries added so
 * far. */
void journal_add_loss(struct journal *journal, uint64_t n);
void journal_flush(struct journal *journal);
/* Iterations whose entries did not reach the file. */
uint64_t journal_lost(struct journal *journal);

/* Reads the newest entries of a session (0: of all), at most max, oldest first, after flushing the
 * waiting ones. Returns their number. Loop thread. */
uint32_t journal_read(
	struct journal *journal, uint64_t session, struct journal_entry *out, uint32_t max);

/* A place where iterations of any sessions are missing. */
struct journal_loss {
	uint64_t number; /* entries with a higher number came after the loss */
	uint64_t time_ns; /* when it was noticed, CLOCK_REALTIME */
	uint64_t lost;
	uint64_t iteration; /* newest iteration before it; 0: the file has none */
};
/* Reads the newest losses with a number above `above`, at most max, oldest first. Returns their
 * number. Loop thread. */
uint32_t journal_losses(
	struct journal *journal, uint64_t above, struct journal_loss *out, uint32_t max);

/* Loads all iterations of a file that is not being written, or of a copy, oldest first. The caller
 * frees *out. The file is opened for reading and not trusted: entries that fail their checksum or
 * that are impossible are skipped. -ENOENT and the like; -EINVAL: it is no journal, or empty. */
int journal_load(const char *path, struct journal_entry **out, size_t *n, struct error *err);
