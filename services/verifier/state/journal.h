/*
 * The session page as a journal. The order of the stores below makes a kill -9 at any instant
 * harmless. The front writes a page while uid is 0, and frees it once it is DONE or given up; in
 * between the page belongs to the engine.
 *
 * A session has two pages. `page` is in this process's own memory, and the verifier uses only this
 * one, so no other process can change a length or a token between a check and a use. `shared` is
 * the same in the region, for the drafter and for a successor; it is written, but not read again. A
 * successor calls journal_adopt, which copies the page once and accepts what is in range and has
 * the right checksum.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/spec/session.h"

/* A page of our own for a session of n_context tokens, without room for a replay; all zeros; the
 * caller frees it. NULL when memory is exhausted. */
struct session_page *journal_page(uint32_t n_context);
size_t journal_page_bytes(uint32_t n_context);

/* Fills free pages; uid is stored last. admitted must be greater than in any other page. n_prompt
 * <= n_context, n_replay <= n_context. */
void journal_admit(const struct sessions_header *header, struct session_page *page,
	struct session_page *shared, uint64_t uid, uint64_t admitted,
	const struct session_request *request, const int32_t *prompt, uint32_t n_prompt,
	const int32_t *replay);

/* The same for an audit: the request's max_tokens tokens of output are there from the beginning, and
 * the end. n_prompt + max_tokens <= n_context. */
void journal_admit_audit(const struct sessions_header *header, struct session_page *page,
	struct session_page *shared, uint64_t uid, uint64_t admitted,
	const struct session_request *request, const int32_t *prompt, uint32_t n_prompt,
	const int32_t *audit);

/* Writes the indices of those of n pages that are used into order[n], in the order of their
 * admission. Returns how many. */
uint32_t journal_order(struct session_page *const *pages, uint32_t n, uint32_t *order);

/* Publishes n tokens that were written to the page behind the committed ones. */
void journal_append(struct session_page *page, struct session_page *shared, uint32_t n);

/* Ends a session: the end is stored before the state DONE. The time is stored only with the first
 * end; an answer whose records were made again had ended before. */
void journal_finish(struct session_page *page, struct session_page *shared, enum session_end end);
/* Gives a finished session back to the engine, under this number, until it is finished again. */
void journal_again(struct session_page *page, struct session_page *shared, uint64_t admitted);
/* Sets another number of admission, with which the order stays the same. */
void journal_number(struct session_page *page, struct session_page *shared, uint64_t admitted);
void journal_enter(
	struct session_page *page, struct session_page *shared, enum session_state state);
void journal_tell(struct session_page *page, struct session_page *shared, bool told);
void journal_sleep(
	struct session_page *page, struct session_page *shared, enum session_sleep asleep);
/* Copies the page's counts, which are for those who look at the session, to the region. */
void journal_count(const struct session_page *page, struct session_page *shared);

/* A copy of a page to which nothing writes now (malloc'd; its tokens behind it, then those of the
 * replay), and its size; NULL when memory is exhausted. */
struct session_page *journal_keep(const struct sessions_header *header,
	const struct session_page *page, struct session_page *shared, size_t *bytes);
/* Writes such a copy into free pages; uid is stored last. A session that has not ended becomes
 * queued. */
void journal_restore(const struct sessions_header *header, struct session_page *page,
	struct session_page *shared, const struct session_page *kept, uint64_t admitted);

/* Frees both pages. uid is cleared first, so that what is copied at the same time is void. */
void journal_free(struct session_page *page, struct session_page *shared);

/* Copies a dead process's page into one of our own. All of that is then in range, and what decides
 * about the answer is as it was written. -EINVAL: the page cannot be trusted. */
int journal_adopt(const struct sessions_header *header, const struct session_page *shared,
	uint32_t n_vocab, struct session_page *page, struct error *err);

/* Checks what every request must satisfy, also one from another process: ranges of enums, counts,
 * strings with their NUL, sampling. */
int journal_check_request(const struct session_request *request, uint32_t n_vocab,
	uint32_t n_context, struct error *err);

static inline uint32_t journal_n_tokens(const struct session_page *page)
{
	/* Pairs with the release in journal_append: tokens[0..n-1] are there. */
	return atomic_load_explicit(&page->n_tokens, memory_order_acquire);
}
static inline uint32_t journal_state(const struct session_page *page)
{
	/* Pairs with the release in journal_finish: the end, and what the engine wrote before it,
	 * is there. */
	return atomic_load_explicit(&page->state, memory_order_acquire);
}
