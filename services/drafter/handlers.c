#include "services/drafter/handlers.h"

#include "kernels/kernels.h"
#include "services/drafter/worker_device.h"
#include "services/drafter/worker_skip.h"
#include "shared/base/arithmetic.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/ipc/daemon_knobs.h"
#include "shared/ipc/peers.h"
#include "shared/ipc/registry.h"
#include "shared/spec/packed.h"
#include "shared/spec/policy.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#define WATCH_NS 1000000000u
/* How long the expert-cache may take to appear, in periods of WATCH_NS. */
#define ALONE_TICKS 10

static const char *const link_peers[HANDLER_LINKS] = {PEER_VERIFIER, PEER_CACHE, PEER_POLICY};

static const struct wanted {
	const char *peer, *name;
	uint32_t layout;
	bool writable;
} wanted[WORKER_REGIONS] = {
	[WORKER_SESSIONS] = {PEER_VERIFIER, SESSIONS_REGION, SESSIONS_LAYOUT, false},
	[WORKER_DRAFT] = {PEER_VERIFIER, DRAFT_REGION, DRAFT_LAYOUT, true},
	[WORKER_SUPPORTS] = {PEER_VERIFIER, SUPPORTS_REGION, SUPPORTS_LAYOUT, true},
	[WORKER_EXPERTS] = {PEER_CACHE, EXPERTS_REGION, EXPERTS_LAYOUT, false},
	[WORKER_HINTS] = {PEER_CACHE, HINTS_REGION, HINTS_LAYOUT, true},
	[WORKER_POLICY] = {PEER_POLICY, POLICY_REGION, POLICY_LAYOUT, false},
	[WORKER_HIDDEN] = {PEER_VERIFIER, HIDDEN_REGION, HIDDEN_LAYOUT, false},
	[WORKER_WEIGHTS] = {PEER_VERIFIER, WEIGHTS_REGION, WEIGHTS_REGION_LAYOUT, false},
};

/* Tells the verifier which hidden states the head reads. */
static void tell_taps(struct handlers *h)
{
	struct peer_settings settings = {0};
	worker_taps(h->worker, &settings.taps);
	registry_tell(h->daemon, PEER_VERIFIER, &settings);
}

/* Asks the expert-cache for memory of the device, and says what has been taken. */
static void tell_needs(struct handlers *h)
{
	struct worker_device_state now;
	worker_device_now(h->worker, &now);
	uint64_t bytes = draft_engine_bytes(&now.needs);
	if (!now.name)
		return;
	const struct peer_settings settings = {
		.has_needs = 1, .needs = {.device = bytes, .device_there = now.there ? bytes : 0}};
	registry_tell(h->daemon, PEER_CACHE, &settings);
}

static void on_peer(void *arg, const struct peer *peer)
{
	struct handlers *h = arg;
	const struct peer_share *share = &peer->card.settings.share;
	if (strcmp(peer->name, PEER_CACHE) == 0 && peer->standing == PEER_REGISTERED &&
		share->asked > 0)
		worker_device_answer(h->worker, share->asked, share->granted != 0, share->refusal);
}

/* Without an expert-cache nobody shares the memory out: what is free of it decides. */
static void look_for_cache(void *arg)
{
	struct handlers *h = arg;
	const struct peer *cache = registry_peer(h->daemon, PEER_CACHE);
	struct worker_device_state now;
	worker_device_now(h->worker, &now);
	uint64_t bytes = draft_engine_bytes(&now.needs);
	bool alone = bytes > 0 && !now.there && !now.refusal[0] &&
		     (!cache || cache->standing != PEER_REGISTERED);
	h->alone_ticks = alone ? h->alone_ticks + 1 : 0;
	if (h->alone_ticks == ALONE_TICKS)
		worker_device_answer(h->worker, bytes, true, "");
}

void handlers_update_state(struct handlers *h)
{
	char refusal[400];
	tell_taps(h);
	tell_needs(h);
	worker_refusal(h->worker, refusal, sizeof(refusal));
	if (*refusal)
		daemon_set_state(h->daemon, "degraded: %s", refusal);
	else if (!h->up[0])
		daemon_set_state(h->daemon, "degraded: no verifier");
	else if (h->failed[WORKER_SESSIONS] || h->failed[WORKER_DRAFT])
		daemon_set_state(h->daemon, "degraded: the verifier's regions cannot be used");
	else
		daemon_set_state(h->daemon, "ready");
}

/* Maps a region that is wanted and new. The same region, offered again by a restarted owner, stays
 * mapped. */
static int attach(struct handlers *h, int which, int fd)
{
	struct region region;
	struct error err;
	int r = region_attach(fd, wanted[which].name, wanted[which].layout, REGION_DATA,
		wanted[which].writable, &region, &err);
	h->failed[which] = r < 0;
	if (r < 0) {
		if (!link_brings_again(r))
			log_error("%s: %s", wanted[which].peer, err.text);
		return r;
	}
	r = broker_keep(h->broker, &region);
	if (region.header->uid == h->uid[which]) {
		region_close(&region);
		return r;
	}
	h->uid[which] = region.header->uid;
	worker_give(h->worker, (enum worker_region)which, &region);
	log_info("region %s of %s attached", wanted[which].name, wanted[which].peer);
	return r;
}

/* A region that is not used for drafts, such as the KV cache: kept only for its owner's successor.
 */
static int keep(struct handlers *h, const char *name, int fd)
{
	struct region_header header;
	struct region region;
	struct error err;
	if (peers_region_memory(name)) {
		int r = broker_keep_fd(h->broker, name, fd);
		close(fd);
		return r;
	}
	ssize_t n = pread(fd, &header, sizeof(header), 0);
	if (n != (ssize_t)sizeof(header)) {
		close(fd);
		return 0;
	}
	int r = region_attach(fd, name, header.layout, REGION_DATA, false, &region, &err);
	if (r < 0) {
		log_info("region %s is not kept: %s", name, err.text);
		return 0;
	}
	r = broker_keep(h->broker, &region);
	region_close(&region);
	return r;
}

/* The drafter draws its tokens with the same arithmetic as the target. */
static void describe(struct handlers *h, struct daemon *daemon)
{
	static struct peer_layout layouts[WORKER_REGIONS];
	for (int i = 0; i < WORKER_REGIONS; i++)
		layouts[i] = (struct peer_layout){wanted[i].name, wanted[i].layout};
	const struct peer_self self = {
		.arithmetic = KERNELS_ARITHMETIC, .layouts = layouts, .n_layouts = WORKER_REGIONS};
	registry_describe(daemon, &self);
	registry_on_change(daemon, on_peer, h);
}

/* Unmaps the verifier's weights: they may be most of the memory, which its successor needs if it has
 * other ones. */
static void give_no_weights(struct handlers *h)
{
	struct region none = {.fd = -1};
	if (h->uid[WORKER_WEIGHTS] == 0)
		return;
	h->uid[WORKER_WEIGHTS] = 0;
	worker_give(h->worker, WORKER_WEIGHTS, &none);
}

static bool is_among(const char *name, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(names[i], name) == 0)
			return true;
	return false;
}

static int on_regions(
	void *arg, const char *peer, const char *const *names, const int *fds, size_t n)
{
	struct handlers *h = arg;
	int r = 0;
	for (int i = 0; i < HANDLER_LINKS; i++)
		if (strcmp(peer, link_peers[i]) == 0)
			h->up[i] = true;
	for (size_t i = 0; i < n; i++) {
		int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
		if (fd < 0) {
			r = -errno;
			break;
		}
		int which = 0;
		while (which < WORKER_REGIONS && (strcmp(wanted[which].peer, peer) != 0 ||
							 strcmp(wanted[which].name, names[i]) != 0))
			which++;
		int taken = which < WORKER_REGIONS ? attach(h, which, fd) : keep(h, names[i], fd);
		r = link_brings_again(taken) ? taken : r;
	}
	if (strcmp(peer, PEER_VERIFIER) == 0 && !is_among(WEIGHTS_REGION, names, n))
		give_no_weights(h);
	broker_keep_only(h->broker, peer, names, n);
	handlers_update_state(h);
	return r;
}

/* Regions stay mapped, but for the weights: the peer's successor takes over the same ones, or brings
 * others. */
static void on_lost(void *arg, const char *peer)
{
	struct handlers *h = arg;
	for (int i = 0; i < HANDLER_LINKS; i++)
		if (strcmp(peer, link_peers[i]) == 0)
			h->up[i] = false;
	if (strcmp(peer, PEER_VERIFIER) == 0)
		give_no_weights(h);
	handlers_update_state(h);
}

static void number_detail(struct daemon_details *to, const char *name, uint64_t value)
{
	daemon_detail(to, name, "%llu", (unsigned long long)value);
}

/* How many of the experts that a token used were predicted, in each layer with experts. */
static void recall_detail(const struct route_recall *recall, struct daemon_details *to)
{
	static const char *const names[ROUTE_SOURCES] = {
		[ROUTE_ROUTERS] = "head_recall_routers", [ROUTE_HISTORY] = "head_recall_history"};
	for (int source = 0; source < ROUTE_SOURCES; source++) {
		char text[LIMIT_LAYERS * 5 + 1] = "";
		size_t used = 0;
		for (uint32_t i = 0; i < LIMIT_LAYERS && recall->layer[i].n > 0; i++) {
			uint32_t share = atomic_load_explicit(
				&recall->layer[i].per_mille[source], memory_order_relaxed);
			used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%u.%02u",
				i > 0 ? " " : "", share / 1000, share % 1000 / 10);
		}
		if (used > 0)
			daemon_detail(to, names[source], "%s", text);
	}
}

/* What the draft model, the head and the target's layers do, together. */
static void passes_detail(struct worker *w, struct daemon_details *to)
{
	struct worker_head head;
	struct worker_skip skip;
	struct worker_device_state device;
	const struct draft_model *m = w->model;
	bool met = worker_head(w, &head);
	worker_skip(w, &skip);
	if (met)
		daemon_detail(to, "head", "%s", draft_method_names[head.method]);
	if (skip.refusal[0])
		daemon_detail(to, "layer_skip", "refused: %s", skip.refusal);
	else if (skip.kept > 0)
		daemon_detail(to, "layer_skip", "%u of %u layers draft", skip.kept, skip.of);
	if (!m && head.method == DRAFT_NONE && skip.kept == 0)
		return;
	worker_device_now(w, &device);
	daemon_detail(to, "kernels", "%s",
		device.there ? device.variant
		: m	     ? m->host->variant
		: skip.kept  ? skip.passes.kernels
			     : head.kernels);
	char number[ARITHMETIC_TEXT];
	daemon_detail(to, "arithmetic", "%s",
		arithmetic_text(device.there ? device.arithmetic : KERNELS_ARITHMETIC, number));
	if (device.name)
		number_detail(to, "fast_tokens", head.fast_tokens + (m ? m->fast_tokens : 0));
	number_detail(to, "passes", head.passes + skip.passes.passes + (m ? m->passes : 0));
	number_detail(to, "pass_tokens", head.tokens + skip.passes.tokens + (m ? m->tokens : 0));
	number_detail(
		to, "evictions", head.evictions + skip.passes.evictions + (m ? m->evictions : 0));
	if (head.method == DRAFT_MTP) {
		number_detail(to, "head_experts_cached", head.from_slots);
		number_detail(to, "head_experts_file", head.from_file);
	}
	recall_detail(&w->hints.recall, to);
	if (skip.passes.from_slots + skip.passes.from_file > 0) {
		number_detail(to, "skip_experts_cached", skip.passes.from_slots);
		number_detail(to, "skip_experts_file", skip.passes.from_file);
	}
}

/* Where the model is computed, if a device was set. */
static void device_detail(struct worker *w, struct daemon_details *to)
{
	struct worker_device_state now;
	worker_device_now(w, &now);
	uint64_t bytes = draft_engine_bytes(&now.needs);
	if (!now.name && !now.refusal[0])
		return;
	daemon_detail(to, "device", "%s", now.there ? now.name : "cpu");
	number_detail(to, "device_needs_bytes", bytes);
	number_detail(to, "device_bytes", now.there ? bytes : 0);
	if (now.refusal[0])
		daemon_detail(to, "device_refused", "%s", now.refusal);
}

static void on_detail(void *arg, struct daemon_details *to)
{
	struct handlers *h = arg;
	struct worker *w = h->worker;
	const struct worker_counts *c = &w->counts;
	const char *path = h->config->draft;
	daemon_detail(to, "method", "%s", draft_method_names[h->config->method]);
	if (*path)
		daemon_detail_file(to, "draft", path);
	else
		daemon_detail(to, "draft", "none");
	passes_detail(w, to);
	device_detail(w, to);
	const struct {
		const char *name;
		const _Atomic uint64_t *value;
	} counts[] = {
		{"draft_hints", &w->hints.sent[HINT_DRAFT]},
		{"history_hints", &w->hints.sent[HINT_HISTORY]},
		{"routings", &w->hints.learnt},
		{"requests", &c->requests},
		{"stale", &c->stale},
		{"rounds", &c->rounds},
		{"replies", &c->replies},
		{"drafted", &c->drafted},
		{"drafted_ahead", &c->drafted_ahead},
		{"foreseen", &c->foreseen},
		{"busy_ns", &c->busy_ns},
	};
	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		daemon_detail(to, counts[i].name, "%llu",
			(unsigned long long)atomic_load_explicit(
				counts[i].value, memory_order_relaxed));
}

/* Drafts are verified, so changed weights make no answer wrong. They may make drafts worse, hence
 * the news in the log. */
static void watch_draft(void *arg)
{
	struct handlers *h = arg;
	const struct gguf *gguf = h->worker->model->model->gguf;
	char news[512];
	struct error err;
	static_assert(sizeof(news) >= GGUF_SAMPLE_TEXT, "either text fits");
	if (gguf_watch(gguf, &err) < 0) {
		log_error("%s", err.text);
		daemon_stop(h->daemon, EX_TEMPFAIL);
		return;
	}
	if (gguf_news(gguf, &h->news, news, sizeof(news)))
		log_notice("%s", news);
	if (h->file_state == gguf_state(gguf))
		return;
	h->file_state = gguf_state(gguf);
	log_notice("%s: something touched the file; the parts that were compared are the same: %s",
		gguf_path(gguf), gguf_sample_text(gguf, news));
}

static int rehearse(void *arg, const void *next, struct error *err)
{
	const struct handlers *h = arg;
	const struct drafter_config *config = next;
	if (strcmp(config->skip_layers, h->config->skip_layers) == 0)
		return 0;
	return worker_skip_can(h->worker, config->skip_layers, err);
}

static int apply(void *arg, const void *next, struct error *err)
{
	struct handlers *h = arg;
	struct drafter_config config = *(const struct drafter_config *)next;
	int r = drafter_config_resolve(&config, err);
	if (r == 0)
		r = rehearse(arg, &config, err);
	if (r == 0)
		worker_tune(h->worker, &config);
	return r;
}

static int fits(void *arg, const void *next, struct error *err)
{
	const struct handlers *h = arg;
	const struct drafter_config *config = next;
	if (strcmp(config->draft, h->config->draft) == 0)
		return 0;
	return file_check("draft", config->draft, err);
}

static int open_knobs(struct handlers *h, struct drafter_config *config,
	const struct options *options, struct error *err)
{
	const struct daemon_knobs knobs = {
		.keys = drafter_config_keys,
		.config = config,
		.config_bytes = sizeof(*config),
		.check = drafter_config_check,
		.fits = fits,
		.rehearse = rehearse,
		.apply = apply,
		.arg = h,
		.config_path = options->config_path,
		.on_command_line = options->on_command_line,
	};
	return daemon_knobs_open(h->daemon, &knobs, err);
}

int handlers_open(struct handlers *h, struct daemon *daemon, struct broker *broker,
	struct worker *worker, struct drafter_config *config, const struct options *options,
	struct error *err)
{
	memset(h, 0, sizeof(*h));
	h->daemon = daemon;
	h->broker = broker;
	h->worker = worker;
	h->config = config;
	const struct link_events events = {.regions = on_regions, .lost = on_lost, .arg = h};
	describe(h, daemon);
	int r = daemon_admin_open(daemon, NULL, NULL, err);
	for (int i = 0; i < HANDLER_LINKS && r == 0; i++)
		r = link_open(daemon, link_peers[i], &events, &h->links[i], err);
	if (r == 0)
		r = open_knobs(h, config, options, err);
	if (r < 0)
		return r;
	if (worker->model)
		h->file_state = gguf_state(worker->model->model->gguf);
	if (worker->model && daemon_add_timer(daemon, WATCH_NS, watch_draft, h) < 0)
		return error_set(err, ENOSPC, "too many timers");
	if (worker_device_wanted(worker) &&
		daemon_add_timer(daemon, WATCH_NS, look_for_cache, h) < 0)
		return error_set(err, ENOSPC, "too many timers");
	daemon_on_detail(daemon, on_detail, h);
	daemon_on_alive(daemon, worker_alive, worker);
	return 0;
}

void handlers_close(struct handlers *h)
{
	for (int i = 0; i < HANDLER_LINKS; i++)
		if (h->links[i])
			link_close(&h->links[i]);
}
