#include "services/drafter/worker_mail.h"

#include "services/drafter/head.h"
#include "services/drafter/head_blocks.h"
#include "services/drafter/worker_device.h"
#include "services/drafter/worker_skip.h"
#include "shared/base/log.h"
#include "shared/spec/policy.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void refuse(struct worker *w, const char *text)
{
	pthread_mutex_lock(&w->mutex);
	bool changed = strcmp(w->refusal, text) != 0;
	snprintf(w->refusal, sizeof(w->refusal), "%s", text);
	pthread_mutex_unlock(&w->mutex);
	if (changed && *text)
		log_error("%s", text);
	if (changed && w->on_change)
		w->on_change(w->arg);
}

void worker_end_session(struct worker *w, struct draft_session *s)
{
	if (s->uid == 0)
		return;
	draft_model_drop(s);
	grammars_end(&w->grammars, s);
	session_end(s);
}

/* Loads the target's routers, where hints are wanted. */
static void meet_hints(struct worker *w)
{
	struct error err = {""};
	const struct sessions_header *header = &w->view.header;
	assert(w->model);
	if (w->config->hints == CHOICE_OFF) {
		hints_no_target(&w->hints);
		return;
	}
	int r = hints_target(&w->hints, header->model_path, header->model_fingerprint,
		&w->model->model->config, w->model->host, &err);
	if (r < 0)
		log_info("expert hints come from history: %s", err.text);
}

/* Tells the loop thread, which tells the verifier, what the head reads. */
static void want_states(struct worker *w)
{
	struct peer_taps taps = {0};
	if (w->head) {
		taps.n = w->head->wanted.n_taps;
		taps.model = w->head->wanted.model;
		memcpy(taps.layer, w->head->wanted.tap, sizeof(taps.layer));
	}
	pthread_mutex_lock(&w->mutex);
	bool changed = memcmp(&w->taps, &taps, sizeof(taps)) != 0;
	w->taps = taps;
	w->met = true;
	pthread_mutex_unlock(&w->mutex);
	if (changed && w->on_change)
		w->on_change(w->arg);
}

void worker_close_model(struct worker *w, struct draft_model **model)
{
	const struct draft_model *old = *model;
	for (uint32_t i = 0; old && i < LIMIT_SESSIONS; i++) {
		struct draft_session *s = &w->sessions[i];
		if (s->uid == 0)
			continue;
		if (s->has_seq && s->drafter == old)
			draft_model_drop(s);
		if (s->wants == old)
			s->wants = NULL;
	}
	draft_model_close(model);
}

static void set_head(struct worker *w, struct draft_model *head)
{
	pthread_mutex_lock(&w->mutex);
	struct draft_model *old = w->head;
	w->head = head;
	pthread_mutex_unlock(&w->mutex);
	hints_head(&w->hints, head ? &head->routes : NULL);
	for (uint32_t i = 0; old && i < LIMIT_SESSIONS; i++) {
		free(w->sessions[i].out);
		w->sessions[i].out = NULL;
	}
	worker_close_model(w, &old);
}

/* Whether the head is the one that these settings and this target ask for. */
static bool head_stays(const struct worker *w)
{
	return w->head && w->head->method == draft_head_wanted(w->config) &&
	       w->head->wanted.model == w->view.header.file_fingerprint;
}

/* Opens the head for the target, if there is to be one. *text: why it is not used, or "". */
static void meet_head(struct worker *w, struct error *why)
{
	struct draft_model *head = NULL;
	enum draft_method wanted = draft_head_wanted(w->config);
	why->text[0] = '\0';
	if (!head_stays(w)) {
		struct error err = {""};
		int r = wanted == DRAFT_NONE ? -ENODATA
					     : draft_head_open(w->config, &w->view.header,
						       &w->states, &w->hints, &head, &err);
		if (r < 0 && wanted != DRAFT_NONE &&
			(r != -ENODATA || w->config->method == (int)wanted))
			error_set(why, EINVAL, "%.370s: drafting with n-grams", err.text);
		set_head(w, head);
		if (head)
			log_info("the head that drafts is of method %s, and reads %u hidden states "
				 "of a token",
				draft_method_names[head->method], head->wanted.n_taps);
	}
	w->context.head = w->head;
	want_states(w);
}

/* A target with another tokenizer gives its tokens other meanings than the draft model does. Then
 * only n-grams can be used. */
static void meet_model(struct worker *w, struct error *why)
{
	struct error err = {""};
	const struct sessions_header *header = &w->view.header;
	if (draft_model_meet(w->model, header->model_path, header->tokenizer_fingerprint, &err) ==
		0) {
		w->context.model = w->model;
		meet_hints(w);
		return;
	}
	error_set(why, EINVAL,
		"draft model %.100s has another tokenizer than %.100s (%.130s): drafting with "
		"n-grams",
		w->config->draft, header->model_path, err.text);
}

static void meet_target(struct worker *w)
{
	struct error why;
	w->context.view = &w->view;
	w->context.model = NULL;
	grammars_meet(&w->grammars, &w->view.header);
	worker_skip_meet(w);
	hints_no_target(&w->hints);
	meet_head(w, &why);
	if (w->model)
		meet_model(w, &why);
	worker_device_meet(w);
	refuse(w, why.text);
}

/* Takes over settings that the loop thread brought. */
static void take_settings(struct worker *w)
{
	bool hinted = w->own.hints != CHOICE_OFF;
	int method = w->own.method;
	char skipped[sizeof(w->own.skip_layers)];
	memcpy(skipped, w->own.skip_layers, sizeof(skipped));
	if (!atomic_exchange_explicit(&w->tuned, false, memory_order_acquire))
		return;
	pthread_mutex_lock(&w->mutex);
	bool is_head = w->own.draft_is_head;
	w->own = w->next;
	w->own.draft_is_head = is_head;
	pthread_mutex_unlock(&w->mutex);
	if (w->model)
		draft_model_tune(w->model, &w->own);
	if (w->context.model && hinted != (w->own.hints != CHOICE_OFF))
		meet_hints(w);
	if (strcmp(w->own.skip_layers, skipped) != 0)
		worker_skip_forget(w);
	worker_skip_settle(w);
	if (w->context.view && w->config->method != method) {
		struct error why;
		meet_head(w, &why);
		worker_device_meet(w);
		if (!w->model || w->context.model)
			refuse(w, why.text);
	}
}

static void take_sessions(struct worker *w, struct region *region)
{
	struct error err;
	for (uint32_t i = 0; i < LIMIT_SESSIONS; i++)
		worker_end_session(w, &w->sessions[i]);
	worker_skip_forget(w);
	session_view_close(&w->view);
	w->context.view = NULL;
	w->context.head = NULL;
	if (session_view_open(&w->view, region, &err) < 0)
		log_error("the verifier's sessions cannot be used: %s", err.text);
	else
		meet_target(w);
}

/* The loop thread rings the bell to wake this thread, so `bell` is cleared before its memory is
 * unmapped. */
static void take_draft(struct worker *w, struct region *region)
{
	struct error err;
	pthread_mutex_lock(&w->mutex);
	w->bell = NULL;
	pthread_mutex_unlock(&w->mutex);
	region_close(&w->draft);
	w->draft = *region;
	*region = (struct region){.fd = -1};
	int r = draft_attach(
		&w->rings, region_payload(&w->draft), w->draft.bytes - REGION_DATA, &err);
	if (r < 0) {
		log_error("the verifier's draft rings cannot be used: %s", err.text);
		region_close(&w->draft);
		w->draft = (struct region){.fd = -1};
		return;
	}
	struct doorbell *bell = &w->rings.requests.shared->bell;
	doorbell_take_over(bell);
	pthread_mutex_lock(&w->mutex);
	w->bell = bell;
	pthread_mutex_unlock(&w->mutex);
}

static void take_supports(struct worker *w, struct region *region)
{
	w->supports = (struct draft_supports){0};
	region_close(&w->supports_region);
	w->supports_region = *region;
	*region = (struct region){.fd = -1};
	if (w->supports_region.bytes < REGION_DATA + SUPPORTS_BYTES) {
		log_error("the verifier's region of supports cannot be used: %zu bytes, %zu needed",
			w->supports_region.bytes, REGION_DATA + SUPPORTS_BYTES);
		return;
	}
	w->supports = draft_supports_of(region_payload(&w->supports_region));
}

static void take_policy(struct worker *w, struct region *region)
{
	struct error err;
	struct ring unused;
	w->page = NULL;
	region_close(&w->policy);
	w->policy = *region;
	*region = (struct region){.fd = -1};
	int r = policy_attach(
		region_payload(&w->policy), w->policy.bytes - REGION_DATA, &w->page, &unused, &err);
	if (r < 0) {
		log_error("the policy page cannot be used: %s", err.text);
		w->page = NULL;
	}
}

static void take_hidden(struct worker *w, struct region *region)
{
	struct error err;
	if (head_states_use(&w->states, region, &err) < 0)
		log_error("the verifier's hidden states cannot be used: %s", err.text);
}

/* A region without memory: the verifier has none, or is gone. */
static void take_weights(struct worker *w, struct region *region)
{
	worker_skip_forget(w);
	region_close(&w->weights);
	w->weights = *region;
	*region = (struct region){.fd = -1};
}

static void take_region(struct worker *w, enum worker_region which, struct region *region)
{
	struct error err;
	if (which == WORKER_SESSIONS)
		take_sessions(w, region);
	else if (which == WORKER_DRAFT)
		take_draft(w, region);
	else if (which == WORKER_SUPPORTS)
		take_supports(w, region);
	else if (which == WORKER_POLICY)
		take_policy(w, region);
	else if (which == WORKER_HIDDEN)
		take_hidden(w, region);
	else if (which == WORKER_WEIGHTS)
		take_weights(w, region);
	else if (hints_attach(&w->hints, which == WORKER_EXPERTS ? region : NULL,
			 which == WORKER_HINTS ? region : NULL, &err) < 0)
		log_error("the expert slots cannot be used: %s", err.text);
	region_close(region);
}

/* Takes all regions at once. The loop thread gives the rings of another verifier after its
 * sessions, so they are never taken without them. */
static void take_regions(struct worker *w)
{
	struct region mail[WORKER_REGIONS];
	bool has[WORKER_REGIONS];
	if (!atomic_exchange_explicit(&w->mail_waiting, false, memory_order_acquire))
		return;
	pthread_mutex_lock(&w->mutex);
	for (int i = 0; i < WORKER_REGIONS; i++) {
		mail[i] = w->mail[i];
		has[i] = w->has_mail[i];
		w->mail[i] = (struct region){.fd = -1};
		w->has_mail[i] = false;
	}
	pthread_mutex_unlock(&w->mutex);
	for (int i = 0; i < WORKER_REGIONS; i++)
		if (has[i])
			take_region(w, (enum worker_region)i, &mail[i]);
	worker_skip_settle(w);
}

void worker_take_mail(struct worker *w)
{
	take_regions(w);
	take_settings(w);
	worker_device_settle(w);
}

bool worker_has_mail(const struct worker *w)
{
	return atomic_load_explicit(&w->mail_waiting, memory_order_acquire) ||
	       atomic_load_explicit(&w->tuned, memory_order_acquire) ||
	       atomic_load_explicit(&w->device.answered, memory_order_acquire);
}

void worker_wait_for_mail(struct worker *w)
{
	struct timespec end;
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec++;
	pthread_mutex_lock(&w->mutex);
	if (!w->stop && !worker_has_mail(w))
		pthread_cond_timedwait(&w->changed, &w->mutex, &end);
	pthread_mutex_unlock(&w->mutex);
}

void worker_wake(struct worker *w)
{
	pthread_cond_signal(&w->changed);
	if (w->bell)
		doorbell_ring(w->bell);
}

void worker_give(struct worker *w, enum worker_region which, struct region *region)
{
	pthread_mutex_lock(&w->mutex);
	region_close(&w->mail[which]);
	w->mail[which] = *region;
	w->has_mail[which] = true;
	*region = (struct region){.fd = -1};
	atomic_store_explicit(&w->mail_waiting, true, memory_order_release);
	worker_wake(w);
	pthread_mutex_unlock(&w->mutex);
}

void worker_tune(struct worker *w, const struct drafter_config *config)
{
	pthread_mutex_lock(&w->mutex);
	/* Requests that come before the draft thread has the setting are told, too. */
	if (strcmp(w->next.skip_layers, config->skip_layers) != 0)
		worker_skip_check(w, config->skip_layers, w->skip_refusal, sizeof(w->skip_refusal));
	w->next = *config;
	atomic_store_explicit(&w->tuned, true, memory_order_release);
	worker_wake(w);
	pthread_mutex_unlock(&w->mutex);
}

void worker_refusal(struct worker *w, char *out, size_t bytes)
{
	pthread_mutex_lock(&w->mutex);
	bool skip = w->refusal[0] == '\0' && w->skip_by_default;
	snprintf(out, bytes, "%s", skip ? w->skip_refusal : w->refusal);
	pthread_mutex_unlock(&w->mutex);
}

void worker_taps(struct worker *w, struct peer_taps *out)
{
	pthread_mutex_lock(&w->mutex);
	*out = w->taps;
	pthread_mutex_unlock(&w->mutex);
}

void worker_head_of(const struct draft_model *m, struct worker_head *out)
{
	uint64_t from_slots, from_file;
	*out = (struct worker_head){.method = DRAFT_NONE};
	if (!m)
		return;
	head_blocks_counts(m, &from_slots, &from_file);
	*out = (struct worker_head){
		.method = m->method,
		.kernels = m->host->variant,
		.passes = m->passes,
		.tokens = m->tokens,
		.fast_tokens = m->fast_tokens,
		.evictions = m->evictions,
		.from_slots = m->head_experts.from_slots + from_slots,
		.from_file = m->head_experts.from_file + from_file,
	};
}

bool worker_head(struct worker *w, struct worker_head *out)
{
	pthread_mutex_lock(&w->mutex);
	bool met = w->met;
	worker_head_of(w->head, out);
	pthread_mutex_unlock(&w->mutex);
	return met;
}
