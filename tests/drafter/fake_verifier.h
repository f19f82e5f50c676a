/* The verifier's end of the drafter's regions, for tests: session pages and draft rings, without
 * a verifier. */
#pragma once

#include "services/drafter/worker_device.h"
#include "shared/base/patience.h"
#include "shared/spec/accept.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FAKE_SESSIONS = 8, FAKE_PAGES = 36, FAKE_CONTEXT = 1024, FAKE_NEEDS = 8 };

/* A reply as tests look at it. */
struct fake_drafted {
	uint64_t session, sequence, draft_ns;
	uint32_t page, n_tokens, n, method, ahead, foreseen, right;
	bool support;
	int32_t token[LIMIT_DRAFT_NODES];
	int parent[LIMIT_DRAFT_NODES];
	float confidence[LIMIT_DRAFT_NODES];
	uint32_t n_support[LIMIT_DRAFT_DEPTH];
	struct draft_choice q[LIMIT_DRAFT_DEPTH][LIMIT_DRAFT_SUPPORT];
	bool needs;
	uint64_t need[1 + LIMIT_DRAFT_NODES][FAKE_NEEDS];
};

struct fake {
	struct region sessions, draft, supports_region;
	struct sessions_header *header;
	struct draft_rings rings;
	struct draft_supports supports;
	uint64_t sequence;
	uint32_t needs_words; /* of every request; at most FAKE_NEEDS */
};

static inline void fake_open(struct fake *f, uint64_t tokenizer_fingerprint)
{
	struct error err;
	memset(f, 0, sizeof(*f));
	assert_int_equal(region_create(SESSIONS_REGION, SESSIONS_LAYOUT,
				 sessions_bytes(FAKE_PAGES, FAKE_CONTEXT), 0, &f->sessions, &err),
		0);
	f->header = region_payload(&f->sessions);
	f->header->n_sessions = FAKE_PAGES;
	f->header->n_context = FAKE_CONTEXT;
	f->header->page_bytes = session_page_bytes(FAKE_CONTEXT);
	f->header->tokenizer_fingerprint = tokenizer_fingerprint;
	strcpy(f->header->model_path, "/no/such/target.gguf");
	assert_int_equal(
		region_create(DRAFT_REGION, DRAFT_LAYOUT, draft_bytes(), 0, &f->draft, &err), 0);
	draft_format(region_payload(&f->draft));
	assert_int_equal(region_create(SUPPORTS_REGION, SUPPORTS_LAYOUT, SUPPORTS_BYTES, 0,
				 &f->supports_region, &err),
		0);
	f->supports = draft_supports_of(region_payload(&f->supports_region));
	assert_int_equal(draft_attach(&f->rings, region_payload(&f->draft),
				 f->draft.bytes - REGION_DATA, &err),
		0);
}

static inline void fake_close(struct fake *f)
{
	region_close(&f->sessions);
	region_close(&f->draft);
	region_close(&f->supports_region);
}

/* Gives the worker mappings of its own, as the loop thread does. */
static inline void fake_offer(struct fake *f, struct worker *worker)
{
	struct region region;
	struct error err;
	int fd = fcntl(f->sessions.fd, F_DUPFD_CLOEXEC, 0);
	assert_int_equal(region_attach(fd, SESSIONS_REGION, SESSIONS_LAYOUT, REGION_DATA, false,
				 &region, &err),
		0);
	worker_give(worker, WORKER_SESSIONS, &region);
	fd = fcntl(f->supports_region.fd, F_DUPFD_CLOEXEC, 0);
	assert_int_equal(region_attach(fd, SUPPORTS_REGION, SUPPORTS_LAYOUT, REGION_DATA, true,
				 &region, &err),
		0);
	worker_give(worker, WORKER_SUPPORTS, &region);
	/* Last: what the rings carry refers to the other two. */
	fd = fcntl(f->draft.fd, F_DUPFD_CLOEXEC, 0);
	assert_int_equal(
		region_attach(fd, DRAFT_REGION, DRAFT_LAYOUT, REGION_DATA, true, &region, &err), 0);
	worker_give(worker, WORKER_DRAFT, &region);
}

static inline void fake_commit(struct session_page *page, const int32_t *tokens, uint32_t n)
{
	uint32_t at = atomic_load(&page->n_tokens);
	assert_true(at + n <= FAKE_CONTEXT);
	memcpy(page->tokens + at, tokens, n * sizeof(*tokens));
	atomic_store_explicit(&page->n_tokens, at + n, memory_order_release);
}

static inline struct session_page *fake_begin(struct fake *f, uint32_t i, uint64_t uid,
	enum draft_method method, const int32_t *prompt, uint32_t n)
{
	struct session_page *page = session_at(f->header, f->header, i);
	atomic_store(&page->uid, 0);
	atomic_store(&page->n_tokens, 0);
	memset(&page->request, 0, sizeof(page->request));
	sampler_params_default(&page->request.sampling);
	page->request.sampling.temperature = 0;
	page->request.draft_method = method;
	page->n_prompt = n;
	fake_commit(page, prompt, n);
	atomic_store_explicit(&page->uid, uid, memory_order_release);
	return page;
}

static inline void fake_put(struct fake *f, struct draft_request request)
{
	request.sequence = ++f->sequence;
	request.needs_words = request.budget.nodes > 0 ? f->needs_words : 0;
	assert_true(ring_put(&f->rings.requests, &request, sizeof(request)));
}

static inline void fake_ask_tree(struct fake *f, uint32_t page, uint64_t uid, uint32_t n_tokens,
	struct draft_budget budget, bool last)
{
	fake_put(f, (struct draft_request){.session = uid,
			    .page = page,
			    .n_tokens = n_tokens,
			    .budget = budget,
			    .last = last});
}

static inline void fake_ask(
	struct fake *f, uint32_t page, uint64_t uid, uint32_t n_tokens, uint32_t k, bool last)
{
	fake_ask_tree(f, page, uid, n_tokens, draft_chain_budget(k), last);
}

/* Nothing is to be drafted, and what would have been is to be told. */
static inline void fake_foresee(struct fake *f, uint32_t page, uint64_t uid, uint32_t n_tokens)
{
	fake_put(f, (struct draft_request){.session = uid,
			    .page = page,
			    .n_tokens = n_tokens,
			    .last = 1,
			    .foresight = 1});
}

static inline void fake_copy(struct fake_drafted *to, const struct draft_reply *reply)
{
	*to = (struct fake_drafted){
		.session = reply->session,
		.sequence = reply->sequence,
		.draft_ns = reply->draft_ns,
		.page = reply->page,
		.n_tokens = reply->n_tokens,
		.n = reply->n,
		.method = reply->method,
		.ahead = reply->ahead,
		.foreseen = reply->foreseen,
		.right = reply->right,
		.support = reply->support != NULL,
		.needs = reply->needs != NULL,
	};
	for (uint32_t i = 0; reply->needs && i <= reply->n; i++)
		memcpy(to->need[i], reply->needs + (size_t)i * reply->needs_words,
			reply->needs_words * sizeof(*reply->needs));
	for (uint32_t i = 0; i < reply->n; i++) {
		to->token[i] = reply->node[i].token;
		to->parent[i] = reply->node[i].parent;
		to->confidence[i] = draft_confidence_of(&reply->node[i]);
		if (i >= LIMIT_DRAFT_DEPTH)
			continue;
		const struct draft_choice *choice = draft_support(reply, i, &to->n_support[i]);
		if (choice)
			memcpy(to->q[i], choice, to->n_support[i] * sizeof(*choice));
	}
}

/* The next reply if it is there, checked as the verifier does; wait: within 20 s (a sanitizer may
 * be watching). */
static inline bool fake_take(struct fake *f, struct fake_drafted *out, bool wait)
{
	struct doorbell *bell = &f->rings.replies.shared->bell;
	struct draft_reply reply = {.needs_words = f->needs_words};
	struct draft_part part;
	struct patience patience;
	uint32_t n_taken = 0;
	int whole = 0;
	assert_int_equal(draft_room(&reply, LIMIT_DRAFT_NODES), 0);
	patience_init(&patience, 20000);
	while (whole == 0 && patience_step_ms(&patience) > 0) {
		uint32_t seen = doorbell_read(bell);
		if (ring_get(&f->rings.replies, &part, sizeof(part)))
			whole = draft_take(&reply, &n_taken, &part, &f->supports);
		else if (wait)
			doorbell_wait(bell, seen, 0, 100000000);
		else
			break;
	}
	assert_true(whole >= 0);
	if (whole > 0) {
		const struct draft_budget any = {
			.nodes = LIMIT_DRAFT_NODES, .depth = LIMIT_DRAFT_DEPTH, .width = UINT8_MAX};
		struct error err;
		if (accept_check_draft(&reply, LIMIT_VOCAB, any, &err) < 0)
			fail_msg("%s", err.text);
		fake_copy(out, &reply);
	}
	draft_reply_exit(&reply);
	return whole > 0;
}

static inline bool fake_reply(struct fake *f, struct fake_drafted *reply)
{
	return fake_take(f, reply, true);
}

/* One session's draft from everything it has committed. What was foreseen for requests before may
 * come first. */
static inline struct fake_drafted fake_draft_tree(
	struct fake *f, uint32_t i, struct draft_budget budget)
{
	struct session_page *page = session_at(f->header, f->header, i);
	static struct fake_drafted reply;
	fake_ask_tree(f, i, atomic_load(&page->uid), atomic_load(&page->n_tokens), budget, true);
	do
		assert_true(fake_reply(f, &reply));
	while (reply.foreseen > 0 && reply.sequence < f->sequence);
	assert_int_equal(reply.sequence, f->sequence);
	assert_int_equal(reply.page, i);
	assert_int_equal(reply.n_tokens, atomic_load(&page->n_tokens));
	assert_true(reply.n <= budget.nodes);
	return reply;
}

static inline struct fake_drafted fake_draft(struct fake *f, uint32_t i, uint32_t k)
{
	return fake_draft_tree(f, i, draft_chain_budget(k));
}

/* Answers for the expert-cache, and waits until the model is where it belongs. granted: the device's
 * memory may be taken. */
static inline struct worker_device_state fake_place(struct worker *worker, bool granted)
{
	struct worker_device_state now;
	struct patience patience;
	patience_init(&patience, 20000);
	do {
		worker_device_now(worker, &now);
		usleep(1000);
	} while (draft_engine_bytes(&now.needs) == 0 && patience_step_ms(&patience) > 0);
	worker_device_answer(worker, draft_engine_bytes(&now.needs), granted, "no room");
	patience_init(&patience, 20000);
	do {
		worker_device_now(worker, &now);
		usleep(1000);
	} while (now.there != granted && now.refusal[0] == '\0' && patience_step_ms(&patience) > 0);
	return now;
}
