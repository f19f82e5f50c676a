#include "services/drafter/session.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

int session_view_open(struct session_view *view, struct region *region, struct error *err)
{
	size_t bytes = region->bytes - REGION_DATA;
	void *shared = region_payload(region);
	struct sessions_header header;
	if (bytes < sizeof(header))
		return error_set(err, EBADMSG,
			"session region: %zu bytes are too few for its header", bytes);
	memcpy(&header, shared, sizeof(header));
	int r = sessions_check(&header, bytes, err);
	if (r < 0)
		return r;
	view->region = *region;
	view->header = header;
	/* The layout alone decides where the pages begin. */
	view->pages = (unsigned char *)session_at(&view->header, shared, 0);
	*region = (struct region){.fd = -1};
	return 0;
}

void session_view_close(struct session_view *view)
{
	region_close(&view->region);
	memset(view, 0, sizeof(*view));
	view->region.fd = -1;
}

struct session_page *session_view_page(const struct session_view *view, uint32_t page)
{
	return (struct session_page *)(view->pages + page * view->header.page_bytes);
}

/* Looks at the uid a second time: the verifier clears it before it changes anything else in the
 * page. The copy before was loaded with acquire, so this load comes after it. */
static bool still(const struct session_page *page, uint64_t uid)
{
	return atomic_load_explicit(&page->uid, memory_order_relaxed) == uid;
}

/* Only the verifier uses stop strings, so they take no memory here. */
#define REQUEST_BYTES offsetof(struct session_request, stops)

static void clear(struct draft_session *s)
{
	size_t stops = offsetof(struct draft_session, request) + REQUEST_BYTES;
	size_t after = offsetof(struct draft_session, request) + sizeof(s->request);
	memset(s, 0, stops);
	memset((char *)s + after, 0, sizeof(*s) - after);
}

/* Copies what the verifier may be overwriting. `still` detects a mixture of two sessions, and the
 * caller drops it. */
static void copy_words(void *to, const void *from, size_t bytes)
{
	static_assert(REQUEST_BYTES % sizeof(uint64_t) == 0, "whole words");
	const uint64_t *source = from;
	uint64_t *target = to;
	for (size_t i = 0; i < bytes / sizeof(uint64_t); i++)
		target[i] = __atomic_load_n(&source[i], __ATOMIC_ACQUIRE);
}

int session_begin(struct draft_session *s, const struct session_view *view, uint32_t page,
	uint64_t uid, const struct drafter_config *config)
{
	const struct session_page *from = session_view_page(view, page);
	uint32_t n_context = view->header.n_context;
	struct sampler_params *sampling = &s->request.sampling;
	uint64_t seed;
	clear(s);
	if (atomic_load_explicit(&from->uid, memory_order_acquire) != uid)
		return -ESTALE;
	s->n_prompt = __atomic_load_n(&from->n_prompt, __ATOMIC_ACQUIRE);
	copy_words(&s->request, &from->request, REQUEST_BYTES);
	if (!still(from, uid))
		return -ESTALE;
	if (s->n_prompt > n_context || s->request.n_replay > n_context ||
		s->request.draft_method >= DRAFT_METHODS ||
		sampler_params_check(sampling, LIMIT_VOCAB, NULL) < 0)
		return -EBADMSG;
	if (getrandom(&seed, sizeof(seed), 0) != (ssize_t)sizeof(seed))
		seed = uid;
	s->tokens = malloc(((size_t)n_context + CHAIN_MAX) * sizeof(*s->tokens));
	if (!s->tokens)
		return -ENOMEM;
	int r = ngram_init(&s->ngram, (uint32_t)config->ngram_min, (uint32_t)config->ngram_max,
		n_context, seed);
	if (r < 0) {
		free(s->tokens);
		return r;
	}
	s->uid = uid;
	s->page = page;
	s->n_context = n_context;
	return 0;
}

int session_copy_texts(
	const struct draft_session *s, const struct session_view *view, struct session_request *out)
{
	const struct session_page *from = session_view_page(view, s->page);
	size_t bytes = session_request_bytes(&s->request);

	copy_words(out, &from->request, bytes / sizeof(uint64_t) * sizeof(uint64_t));
	for (size_t i = bytes / sizeof(uint64_t) * sizeof(uint64_t); i < bytes; i++)
		((char *)out)[i] =
			__atomic_load_n((const char *)&from->request + i, __ATOMIC_ACQUIRE);
	/* Sizes are those that were checked, whatever is there by now. */
	memcpy(out, &s->request, REQUEST_BYTES);
	return still(from, s->uid) ? 0 : -ESTALE;
}

void session_end(struct draft_session *s)
{
	if (s->uid == 0)
		return;
	ngram_exit(&s->ngram);
	free(s->tokens);
	if (s->chain)
		free(s->chain->q);
	free(s->chain);
	free(s->grown);
	free(s->out);
	free(s->state_row);
	clear(s);
}

static void shift_chain(struct draft_session *s, uint32_t by)
{
	uint32_t left = s->n_chain - by;
	if (by == 0 || !s->chain)
		return;
	memmove(s->chain->confidence, s->chain->confidence + by,
		left * sizeof(s->chain->confidence[0]));
	memmove(s->chain->n_support, s->chain->n_support + by,
		left * sizeof(s->chain->n_support[0]));
	if (s->chain->q)
		memmove(s->chain->q, s->chain->q + by, left * sizeof(s->chain->q[0]));
}

int session_follow(
	struct draft_session *s, const struct session_view *view, uint32_t n_tokens, uint32_t *kept)
{
	const struct session_page *page = session_view_page(view, s->page);
	/* Pairs with the verifier's release store of n_tokens: the tokens below it are written. */
	uint32_t there = atomic_load_explicit(&page->n_tokens, memory_order_acquire);
	uint32_t known = s->n + s->n_chain, at = s->n;
	*kept = known;
	if (there > s->n_context || n_tokens > there || n_tokens < s->n)
		return -EBADMSG;
	bool agrees = true;
	for (; at < n_tokens; at++) {
		int32_t token = __atomic_load_n(&page->tokens[at], __ATOMIC_ACQUIRE);
		if (agrees && at < known && token != s->tokens[at]) {
			agrees = false;
			*kept = at;
		}
		s->tokens[at] = token;
		uint32_t needed = token < 0 ? UINT32_MAX : (uint32_t)token + 1;
		if (needed > s->n_vocab_needed)
			s->n_vocab_needed = needed;
	}
	if (!still(page, s->uid))
		return -ESTALE;
	if (agrees && n_tokens <= known) {
		shift_chain(s, n_tokens - s->n);
		s->n_chain = known - n_tokens;
	} else {
		s->n_chain = 0;
	}
	s->n = n_tokens;
	s->chain_goal = 0;
	ngram_update(&s->ngram, s->tokens, s->n);
	return 0;
}
