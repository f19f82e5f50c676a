/*
 * The session page as a journal: the order of the stores below is what makes a kill -9 at any instant harmless.
 * The front writes a page while uid is 0 and frees it once it is DONE; in between it is the engine's. A
 * successor calls journal_check on each page before it believes anything in it.
 */
#pragma once

#include "shared/base/error.h"
#include "shared/spec/session.h"

/* Fills a free page; uid is stored last. admitted: greater than any other page's. n_prompt <= n_context,
 * n_replay <= n_context. */
void journal_admit(struct sessions_header *header, struct session_page *page, uint64_t uid,
	uint64_t admitted, const struct session_request *request, const int32_t *prompt,
	uint32_t n_prompt, const int32_t *replay);

/* The pages that are not free, in the order of their admission: their indices into order[header->n_sessions]; returns how
 * many. */
uint32_t journal_order(struct sessions_header *header, uint32_t *order);

/* Publishes n tokens that were written behind the committed ones. */
void journal_append(struct session_page *page, uint32_t n);

/* The end is stored before the state that says there is one. When it came is kept of the first alone: one whose hashes were
 * made again had ended before. */
void journal_finish(struct session_page *page, enum session_end end);

/* uid is cleared first: whatever is copied meanwhile is void. */
void journal_free(struct session_page *page);

/* Everything in range, as a page from a dead process must be before its indices are used. */
int journal_check(const struct sessions_header *header, struct session_page *page, uint32_t n_vocab,
	struct error *err);

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
