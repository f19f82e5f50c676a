/*
 * The session page as a journal: the order of the stores below is what makes a kill -9 at any instant harmless.
 * The front writes a page while uid is 0 and frees it once it is DONE or given up; in between it is the engine's.
 *
 * A session has two pages. `page` is this process's own memory, and all that it goes by: no other process can change a length
 * or a token between a check and a use. `shared` is the same in the region, for the drafter and for a successor; it is written
 * and not read back. A successor calls journal_adopt, which copies the page once and believes what is in range and has the
 * right checksum.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/spec/session.h"

/* A page of our own for a session of so many tokens, its replay not counted, all zeros; the caller's to free. NULL without
 * memory. */
struct session_page *journal_page(uint32_t n_context);
size_t journal_page_bytes(uint32_t n_context);

/* Fills free pages; uid is stored last. admitted: greater than any other page's. n_prompt <= n_context,
 * n_replay <= n_context. */
void journal_admit(const struct sessions_header *header, struct session_page *page,
	struct session_page *shared, uint64_t uid, uint64_t admitted,
	const struct session_request *request, const int32_t *prompt, uint32_t n_prompt,
	const int32_t *replay);

/* Those of n pages that are there, in the order of their admission: their indices into order[n]; returns how many. */
uint32_t journal_order(struct session_page *const *pages, uint32_t n, uint32_t *order);

/* Publishes n tokens that were written to the page behind the committed ones. */
void journal_append(struct session_page *page, struct session_page *shared, uint32_t n);

/* The end is stored before the state that says there is one. When it came is kept of the first alone: one whose records were
 * made again had ended before. */
void journal_finish(struct session_page *page, struct session_page *shared, enum session_end end);
/* A finished one is the engine's again, under this number, until it is finished once more. */
void journal_again(struct session_page *page, struct session_page *shared, uint64_t admitted);
/* Another number, where the order stays. */
void journal_number(struct session_page *page, struct session_page *shared, uint64_t admitted);
void journal_enter(
	struct session_page *page, struct session_page *shared, enum session_state state);
void journal_tell(struct session_page *page, struct session_page *shared, bool told);
/* What is there for those who look at a session: the counts of the page as they are now. */
void journal_count(const struct session_page *page, struct session_page *shared);

/* A copy of a page that nobody writes to (malloc'd; its tokens behind it, then those of replay), and its size; NULL without
 * memory. */
struct session_page *journal_keep(const struct sessions_header *header,
	const struct session_page *page, struct session_page *shared, size_t *bytes);
/* Writes such a copy into free pages; uid is stored last. A session that has not ended is queued. */
void journal_restore(const struct sessions_header *header, struct session_page *page,
	struct session_page *shared, const struct session_page *kept, uint64_t admitted);

/* uid is cleared first: whatever is copied meanwhile is void. */
void journal_free(struct session_page *page, struct session_page *shared);

/* A dead process's page into one of our own, which then has everything in range, and what decides about the answer as it was
 * written. -EINVAL: it is not to be believed. */
int journal_adopt(const struct sessions_header *header, const struct session_page *shared,
	uint32_t n_vocab, struct session_page *page, struct error *err);

/* What a request must satisfy whoever wrote it: ranges of enums, counts, strings with their NUL, sampling. */
int journal_check_request(const struct session_request *request, uint32_t n_vocab,
	uint32_t n_context, struct error *err);

static inline uint32_t journal_n_tokens(const struct session_page *page)
{
	/* Pairs with the release in journal_append: tokens[0..n-1] are there. */
	return atomic_load_explicit(&page->n_tokens, memory_order_acquire);
}
static inline uint32_t journal_state(const struct session_page *page)
{
	/* Pairs with the release in journal_finish: end, and what the engine wrote before, is there. */
	return atomic_load_explicit(&page->state, memory_order_acquire);
}
