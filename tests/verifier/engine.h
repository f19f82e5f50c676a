/*
 * An engine in the test's own process, on the demo model and the CPU's back end, whose passes the
 * test runs one by one. The drafter is a thread of the test's that drafts what it is told to.
 */
#pragma once

#include "kernels/cpu/steps/backend_cpu.h"
#include "kernels/kernels.h"
#include "services/verifier/pass/engine.h"
#include "services/verifier/state/resources.h"
#include "shared/base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define RIG_MODEL "models/outrider-demo-moe-q8_0.gguf"
enum { RIG_SESSIONS = 8, RIG_TOKENS = 64 };

struct engine_rig {
	struct verifier_config config;
	struct model *model;
	struct tokenizer *tokenizer;
	struct backend *backend;
	struct backend_ops ops; /* the back end's, and what a test changes of them */
	struct regions regions;
	struct proof proof;
	struct slot slots[LIMIT_SESSIONS];
	_Atomic uint64_t news[ENGINE_CHANGED_WORDS];
	struct engine *engine;
	uint32_t woken;
	/* The drafter. Of each session (by its page): how many of the right tokens it drafts, how
	 * sure it says it is, whether it keeps silent; and what it was asked for when it answered
	 * last. */
	pthread_t thread;
	_Atomic bool stop;
	struct draft_rings rings;
	struct rig_drafts {
		const int32_t *right; /* [RIG_TOKENS] of its answer; NULL: it drafts nothing */
		uint32_t n_prompt, n_right;
		float confidence;
		_Atomic bool silent;
		struct draft_budget asked;
	} drafts[RIG_SESSIONS];
};

static inline void rig_wake(void *arg)
{
	((struct engine_rig *)arg)->woken++;
}

static inline bool rig_cache_alive(void *arg)
{
	(void)arg;
	return false;
}

/* A chain of as many tokens as it was asked for, the first n_right as they will come. */
static inline void rig_draft(struct engine_rig *rig, const struct draft_request *request)
{
	struct draft_node node[LIMIT_DRAFT_NODES];
	struct draft_supports none = {0};
	struct rig_drafts *d = &rig->drafts[request->page];
	struct draft_reply reply = {.session = request->session,
		.sequence = request->sequence,
		.page = request->page,
		.n_tokens = request->n_tokens,
		.method = DRAFT_REPLAY,
		.node = node};
	uint32_t at = request->n_tokens - d->n_prompt;

	if (request->budget.nodes == 0 || d->silent)
		return;
	d->asked = request->budget;
	for (uint32_t i = 0; i < request->budget.depth; i++) {
		int32_t right = d->right && at + i < RIG_TOKENS ? d->right[at + i] : 0;

		node[reply.n++] =
			(struct draft_node){.token = i < d->n_right ? right : (right + 1) % 4096,
				.parent = (int16_t)((int)i - 1),
				.confidence = draft_confidence(d->confidence)};
	}
	draft_send(&rig->rings.replies, &none, &reply, false);
}

static inline void *rig_drafter(void *arg)
{
	struct engine_rig *rig = arg;
	struct draft_request request;

	while (!atomic_load(&rig->stop)) {
		while (ring_get(&rig->rings.requests, &request, sizeof(request)))
			rig_draft(rig, &request);
		usleep(50);
	}
	return NULL;
}

static inline void engine_rig_open(struct engine_rig *rig, const char *const *settings)
{
	struct regions_left left = {-1, -1, -1, -1, -1, -1, -1};
	struct resources_needs needs;
	struct error err = {.text = ""};

	memset(rig, 0, sizeof(*rig));
	config_defaults(verifier_config_keys, &rig->config);
	for (int i = 0; settings[i] != NULL; i++)
		assert_int_equal(
			config_set(settings[i], "test", verifier_config_keys, &rig->config, &err),
			0);
	snprintf(rig->config.model, sizeof(rig->config.model), "%s", RIG_MODEL);
	rig->config.experts = VERIFIER_EXPERTS_MAPPED;
	rig->config.threads = 1;
	rig->config.context = 256;
	rig->config.draft_wait = 10000000000;
	assert_int_equal(verifier_config_resolve(&rig->config, &err), 0);
	assert_int_equal(model_load(RIG_MODEL, &rig->model, &err), 0);
	assert_int_equal(tokenizer_load(rig->model->gguf, &rig->tokenizer, &err), 0);
	assert_int_equal(verifier_config_fit(&rig->config, rig->model, &err), 0);
	const struct backend_cpu_options cpu = {
		.kernels = kernels_select("auto", &err), .threads = 1};
	assert_int_equal(backend_cpu_create(&cpu, &rig->backend, &err), 0);
	rig->ops = *rig->backend->ops;
	rig->backend->ops = &rig->ops;
	const struct kv_layout kv = regions_kv_layout(&rig->config, rig->model);
	resources_needs(&rig->config, rig->model, NULL, rig->backend, kv_bytes(&kv), &needs);
	assert_int_equal(regions_open(NULL, &left, &rig->config, rig->model, rig->backend, &needs,
				 0, &rig->regions, &err),
		0);
	proof_init(&rig->proof);
	const struct engine_options options = {
		.config = &rig->config,
		.model = rig->model,
		.tokenizer = rig->tokenizer,
		.backend = rig->backend,
		.regions = &rig->regions,
		.slots = rig->slots,
		.news = rig->news,
		.proof = &rig->proof,
		.generation = clock_ns(),
		.cache_alive = rig_cache_alive,
		.wake = rig_wake,
		.arg = rig,
	};
	assert_int_equal(engine_create(&options, &rig->engine, &err), 0);
	assert_int_equal(engine_open(rig->engine, &err), 0);
	assert_int_equal(
		draft_attach(&rig->rings, region_payload(&rig->regions.draft), draft_bytes(), &err),
		0);
	drafts_peer_joined(&rig->engine->drafts, 1);
	assert_int_equal(pthread_create(&rig->thread, NULL, rig_drafter, rig), 0);
}

static inline void engine_rig_close(struct engine_rig *rig)
{
	atomic_store(&rig->stop, true);
	pthread_join(rig->thread, NULL);
	engine_close(rig->engine);
	engine_destroy(&rig->engine);
	for (uint32_t i = 0; i < RIG_SESSIONS; i++)
		free(rig->slots[i].page);
	proof_exit(&rig->proof);
	regions_close(&rig->regions);
	rig->backend->ops->destroy(rig->backend);
	tokenizer_free(&rig->tokenizer);
	model_free(&rig->model);
}

/* A session of n_prompt tokens, which it has from its index, and of as many as RIG_TOKENS. k:
 * fixed. */
static inline struct engine_session *engine_rig_begin(
	struct engine_rig *rig, uint32_t index, uint32_t n_prompt, int32_t k)
{
	struct slot *slot = &rig->slots[index];
	struct session_request request = {.max_tokens = RIG_TOKENS, .ignore_eos = 1, .k = k};
	int32_t prompt[256];

	sampler_params_default(&request.sampling);
	request.sampling.temperature = index % 2 ? 0.8f : 0;
	request.sampling.seed = index;
	for (uint32_t i = 0; i < n_prompt; i++)
		prompt[i] = (int32_t)(16 + (index * 131 + i * 29) % 4000);
	if (slot->page == NULL)
		slot->page = journal_page((uint32_t)rig->config.context);
	assert_non_null(slot->page);
	slot->shared = regions_page(&rig->regions, index);
	atomic_store(&slot->credit, RIG_TOKENS);
	journal_admit(&rig->regions.header, slot->page, slot->shared, 1000 + index, 1 + index,
		&request, prompt, n_prompt, NULL);
	rig->drafts[index].n_prompt = n_prompt;
	engine_recover(rig->engine, index, false);
	return &rig->engine->sessions[index];
}

/* What a session has in the pass that has just run; NULL: nothing. */
static inline const struct pass_part *engine_rig_part(
	const struct engine_rig *rig, const struct engine_session *s)
{
	for (uint32_t i = 0; i < rig->engine->pass.n_parts; i++)
		if (rig->engine->pass.parts[i].session == s)
			return &rig->engine->pass.parts[i];
	return NULL;
}

/* Until all have ended. */
static inline void engine_rig_end(struct engine_rig *rig)
{
	for (int i = 0; rig->engine->n_live > 0; i++) {
		assert_true(i < 100000);
		pass_run(rig->engine);
	}
}
