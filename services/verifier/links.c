/* The connections to the other processes: the drafter connects to our broker, we connect to the
 * expert cache and the policy-controller. */
#include "services/verifier/front/front.h"
#include "services/verifier/front/kv_change.h"

#include "kernels/kernels.h"
#include "shared/base/log.h"
#include "shared/ipc/peers.h"
#include "shared/ipc/registry.h"
#include "shared/spec/device_slots.h"
#include "shared/spec/file_digest.h"

#include <fcntl.h>
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

/* The expert cache is told how much memory is allocated when that has changed by this part of its
 * maximum; after a smaller change, when it has been the same for a second: an answer takes a little
 * more every few tokens. */
enum { NEEDS_PART = 64, NEEDS_TICKS = 4 };

static bool cache_wanted(const struct front *front)
{
	return front->model->config.n_experts > 0 &&
	       front->config->experts != VERIFIER_EXPERTS_MAPPED;
}

/* The caller keeps fd. */
static int own_fd(int fd, const char *name, struct error *err)
{
	int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);

	return own >= 0 ? own : error_set(err, errno, "region %s: %s", name, strerror(errno));
}

/* Of two results, one for which the link brings the regions again; 0: neither is such. */
static int again_of(int rc, int other)
{
	return link_brings_again(rc) ? rc : link_brings_again(other) ? other : 0;
}

/* Makes a writable mapping of our own; the caller keeps fd. */
static int map(int fd, const char *name, uint32_t layout, size_t payload_min, struct region *out,
	struct error *err)
{
	int own = own_fd(fd, name, err);

	return own < 0 ? own
		       : region_attach(
				 own, name, layout, REGION_DATA + payload_min, true, out, err);
}

static void say_needs(struct front *front, uint64_t there)
{
	struct slots_needs *needs = &front->needs;

	needs->there = there;
	const struct peer_settings settings = {.has_needs = 1,
		.needs = {.weights = needs->weights,
			.kv = needs->kv,
			.rest = needs->rest,
			.there = there,
			.files = needs->files,
			.device = needs->device,
			.device_there = needs->device_there,
			.device_kv = needs->device_kv,
			.device_most = needs->device_most}};
	registry_tell(front->daemon, PEER_CACHE, &settings);
}

void links_say_needs(struct front *front)
{
	if (cache_wanted(front))
		say_needs(front, front->kv.under_way
					 ? front->needs.there
					 : regions_there(front->regions, front->packed));
}

/* The two regions are of no use without each other. */
static int got_experts(struct front *front, int fd, int hints_fd)
{
	struct region region = {.fd = -1}, hints = {.fd = -1};
	struct error err;

	if (!cache_wanted(front))
		return 0;
	int rc =
		map(fd, EXPERTS_REGION, EXPERTS_LAYOUT, sizeof(struct slots_header), &region, &err);
	if (rc == 0)
		rc = map(hints_fd, HINTS_REGION, HINTS_LAYOUT, slots_hints_bytes(), &hints, &err);
	if (rc != 0) {
		if (!link_brings_again(rc))
			log_error("the expert-cache's regions are not used: %s", err.text);
		region_close(&region);
		return rc;
	}
	assert(region.header != NULL && hints.header != NULL);
	uint64_t uid = region.header->uid, hints_uid = hints.header->uid;
	rc = again_of(broker_keep(front->broker, &region), broker_keep(front->broker, &hints));
	if (uid == front->experts_uid && hints_uid == front->hints_uid) {
		region_close(&region);
		region_close(&hints);
		return rc;
	}
	front->experts_uid = uid;
	front->hints_uid = hints_uid;
	engine_use_experts(front->engine, &region, &hints);
	log_info("experts come from the expert-cache now");
	return rc;
}

/* The slots on the device, and their memory. What does not fit is told again when it does: the two
 * come one after the other. */
static int got_device(struct front *front, int fd, int memory_fd)
{
	struct region region = {.fd = -1};
	struct error err;

	if (!cache_wanted(front))
		return 0;
	int own = own_fd(memory_fd, DEVICE_MEMORY, &err), rc = own < 0 ? own : 0;
	if (rc == 0)
		rc = map(fd, DEVICE_REGION, DEVICE_LAYOUT, sizeof(struct device_header), &region,
			&err);
	if (rc != 0) {
		if (!link_brings_again(rc))
			log_error("the device's slots are not used: %s", err.text);
		if (own >= 0)
			close(own);
		return rc;
	}
	assert(region.header != NULL);
	rc = again_of(broker_keep(front->broker, &region),
		broker_keep_fd(front->broker, DEVICE_MEMORY, own));
	/* There is a reason why this process does not use the device, which was said. */
	if (front->device_refused[0] != '\0') {
		region_close(&region);
		close(own);
		return rc;
	}
	kv_change_beside(front, region_payload(&region));
	engine_use_device(front->engine, &region, own);
	front->has_device = true;
	return rc;
}

/* The expert-cache was started again without a device. */
static void no_device(struct front *front)
{
	struct region none = {.fd = -1};

	if (front->has_device)
		engine_use_device(front->engine, &none, -1);
	front->has_device = false;
	kv_change_beside(front, NULL);
}

static int got_digest(struct front *front, int fd)
{
	struct region region = {.fd = -1};
	struct error err;
	int own = own_fd(fd, DIGEST_REGION, &err);
	int rc = own < 0 ? own
			 : region_attach(own, DIGEST_REGION, DIGEST_LAYOUT,
				   REGION_DATA + sizeof(struct file_digest), false, &region, &err);

	if (rc != 0) {
		if (!link_brings_again(rc))
			log_notice(
				"the expert-cache's digest of the model is not used: %s", err.text);
		return rc;
	}
	assert(region.header != NULL);
	rc = broker_keep(front->broker, &region);
	proof_give(&front->proof, &region, front->model->gguf);
	return rc;
}

void links_needs(struct front *front)
{
	const struct slots_needs *needs = &front->needs;

	if (front->kv.under_way)
		return;
	uint64_t there = regions_there(front->regions, front->packed);
	uint64_t grown = there > needs->there ? there - needs->there : needs->there - there;

	front->there_ticks = there == front->there ? front->there_ticks + 1 : 0;
	front->there = there;
	if (grown > (needs->kv + needs->rest) / NEEDS_PART ||
		(grown > 0 && front->there_ticks >= NEEDS_TICKS))
		say_needs(front, there);
}

/* Gives the engine a mapping of its own of the region of hidden states. */
static void fill_hidden(struct front *front, const struct hidden_shape *shape)
{
	struct region engines = {.fd = -1};
	struct error err;

	if (map(front->regions->hidden.fd, HIDDEN_REGION, HIDDEN_LAYOUT, hidden_bytes(shape),
		    &engines, &err) != 0) {
		log_error("the drafter gets no hidden states: %s", err.text);
		return;
	}
	front->hidden = *shape;
	engine_use_hidden(front->engine, &engines);
}

/* Whether the taps that the drafter wants are there; *shape: the region that they need. */
static bool taps_fit(
	const struct front *front, const struct peer_taps *taps, struct hidden_shape *shape)
{
	const struct model *model = front->model;
	uint64_t passes = 2 * (uint64_t)front->engine->pass.max.n_batch;
	uint64_t rows = (uint64_t)front->config->hidden_tokens;

	*shape = (struct hidden_shape){
		.model = model->file_fingerprint,
		.n_taps = (uint32_t)taps->n,
		.n_embd = model->config.n_embd,
		.n_rows = (uint32_t)(rows > passes ? rows : passes),
	};
	for (uint32_t i = 0; i < taps->n; i++) {
		shape->tap[i] = taps->layer[i];
		if (taps->layer[i] <= model->config.n_layers)
			continue;
		log_notice("the drafter wants the hidden states before layer %u; the model has %u "
			   "layers",
			taps->layer[i], model->config.n_layers);
		return false;
	}
	if (taps->model == model->file_fingerprint)
		return true;
	log_notice("the drafter wants hidden states of another model");
	return false;
}

/* Begins to fill a region with the hidden states that the drafter wants, or stops it. */
static void take_taps(struct front *front, const struct peer_taps *taps)
{
	struct region none = {.fd = -1};
	struct hidden_shape shape;
	struct error err;

	if (taps->n == 0 || !taps_fit(front, taps, &shape)) {
		if (front->hidden.n_taps > 0)
			engine_use_hidden(front->engine, &none);
		front->hidden.n_taps = 0;
		return;
	}
	if (front->hidden.n_taps > 0 && hidden_same(&front->hidden, &shape))
		return;
	uint64_t before = front->regions->hidden.header != NULL ? front->regions->hidden.bytes : 0;
	if (regions_make_hidden(front->regions, &shape, &err) != 0) {
		log_error("the drafter gets no hidden states: %s", err.text);
		return;
	}
	broker_offer(front->broker, &front->regions->hidden);
	front->needs.rest += front->regions->hidden.bytes - before;
	links_say_needs(front);
	fill_hidden(front, &shape);
	log_info("the drafter gets hidden states: %u taps, %u tokens", shape.n_taps, shape.n_rows);
}

void links_adopt_hidden(struct front *front)
{
	struct hidden hidden;

	if (front->regions->hidden.header == NULL ||
		hidden_attach(&hidden, region_payload(&front->regions->hidden),
			front->regions->hidden.bytes - REGION_DATA, NULL) != 0)
		return;
	broker_offer(front->broker, &front->regions->hidden);
	fill_hidden(front, &hidden.shape);
}

static int got_policy(struct front *front, int fd)
{
	struct region ours = {.fd = -1}, engines = {.fd = -1};
	struct policy_page *page;
	struct ring records;
	struct error err;
	int rc = map(fd, POLICY_REGION, POLICY_LAYOUT, policy_bytes(), &ours, &err);

	if (rc != 0) {
		if (!link_brings_again(rc))
			log_error("the policy's region is not used: %s", err.text);
		return rc;
	}
	assert(ours.header != NULL);
	bool known = front->policy_region.header != NULL &&
		     front->policy_region.header->uid == ours.header->uid;
	if (!known)
		rc = policy_attach(
			region_payload(&ours), ours.bytes - REGION_DATA, &page, &records, &err);
	if (!known && rc == 0)
		rc = map(fd, POLICY_REGION, POLICY_LAYOUT, policy_bytes(), &engines, &err);
	if (known || rc != 0) {
		if (rc != 0 && !link_brings_again(rc))
			log_error("the policy's region is not used: %s", err.text);
		region_close(&ours);
		return rc;
	}
	rc = broker_keep(front->broker, &ours);
	if (front->policy_region.header != NULL)
		region_close(&front->policy_region);
	front->policy_region = ours;
	front->policy = page;
	engine_use_policy(front->engine, &engines);
	return rc;
}

static int on_regions(
	void *arg, const char *peer, const char *const *names, const int *fds, size_t n)
{
	struct front *front = arg;
	int experts = -1, hints = -1, device = -1, memory = -1, rc = 0;

	for (size_t i = 0; i < n; i++) {
		if (strcmp(peer, PEER_CACHE) == 0 && strcmp(names[i], EXPERTS_REGION) == 0)
			experts = fds[i];
		else if (strcmp(peer, PEER_CACHE) == 0 && strcmp(names[i], HINTS_REGION) == 0)
			hints = fds[i];
		else if (strcmp(peer, PEER_CACHE) == 0 && strcmp(names[i], DIGEST_REGION) == 0)
			rc = again_of(got_digest(front, fds[i]), rc);
		else if (strcmp(peer, PEER_CACHE) == 0 && strcmp(names[i], DEVICE_REGION) == 0)
			device = fds[i];
		else if (strcmp(peer, PEER_CACHE) == 0 && strcmp(names[i], DEVICE_MEMORY) == 0)
			memory = fds[i];
		else if (strcmp(peer, PEER_POLICY) == 0 && strcmp(names[i], POLICY_REGION) == 0)
			rc = again_of(got_policy(front, fds[i]), rc);
	}
	if (experts >= 0 && hints >= 0)
		rc = again_of(got_experts(front, experts, hints), rc);
	if (device >= 0 && memory >= 0)
		rc = again_of(got_device(front, device, memory), rc);
	else if (experts >= 0)
		no_device(front);
	broker_keep_only(front->broker, peer, names, n);
	links_state(front);
	return rc;
}

static void on_lost(void *arg, const char *peer)
{
	(void)peer;
	links_state(arg);
}

static void on_joined(void *arg, const char *peer, int pid, uint64_t generation)
{
	struct front *front = arg;

	if (strcmp(peer, PEER_DRAFTER) != 0)
		return;
	log_info("drafter %d is here", pid);
	front->drafter_here = true;
	drafts_peer_joined(&front->engine->drafts, generation != 0 ? generation : 1);
	links_state(front);
}

static void forget_drafter(struct front *front)
{
	front->drafter_here = false;
	drafts_peer_left(&front->engine->drafts);
	links_state(front);
}

static void on_left(void *arg, const char *peer)
{
	struct front *front = arg;

	if (strcmp(peer, PEER_DRAFTER) != 0)
		return;
	if (front->drafter_here)
		log_write(daemon_is_stopping(front->daemon) ? LOG_LEVEL_INFO : LOG_LEVEL_NOTICE,
			"drafter is gone: going on without drafts");
	forget_drafter(front);
}

/* Called before the drafter's end, if possible: it is asked for nothing more, so that no pass waits
 * for an answer that will not come. */
static void on_change(void *arg, const struct peer *peer)
{
	struct front *front = arg;

	if (strcmp(peer->name, PEER_CACHE) == 0)
		front->kv.drafter = peer->card.settings.needs.device;
	if (strcmp(peer->name, PEER_DRAFTER) != 0)
		return;
	if (peer->standing == PEER_REGISTERED)
		take_taps(front, &peer->card.settings.taps);
	if (!front->drafter_here || peer->card.state.stage < PEER_STOPPING)
		return;
	log_info("drafter is stopping: going on without drafts");
	forget_drafter(front);
}

static void describe(struct front *front)
{
	static const struct peer_layout layouts[] = {{SESSIONS_REGION, SESSIONS_LAYOUT},
		{DRAFT_REGION, DRAFT_LAYOUT}, {EXPERTS_REGION, EXPERTS_LAYOUT},
		{HINTS_REGION, HINTS_LAYOUT}, {DIGEST_REGION, DIGEST_LAYOUT},
		{POLICY_REGION, POLICY_LAYOUT}, {HIDDEN_REGION, HIDDEN_LAYOUT},
		{DEVICE_REGION, DEVICE_LAYOUT}};
	const struct peer_self self = {.arithmetic = KERNELS_ARITHMETIC,
		.model = front->model->file_fingerprint,
		.layouts = layouts,
		.n_layouts = sizeof(layouts) / sizeof(layouts[0])};

	registry_describe(front->daemon, &self);
	registry_on_change(front->daemon, on_change, front);
	if (cache_wanted(front))
		say_needs(front, front->needs.there);
}

int links_broker_open(struct front *front, struct error *err)
{
	const struct broker_events events = {.joined = on_joined, .left = on_left, .arg = front};

	return broker_open(front->daemon, &events, &front->broker, err);
}

int links_open(struct front *front, struct error *err)
{
	const struct link_events events = {.regions = on_regions, .lost = on_lost, .arg = front};
	/* Also needed for the cache's digest of the model's files. */
	describe(front);
	int rc = link_open(front->daemon, PEER_CACHE, &events, &front->cache_link, err);

	if (rc == 0)
		rc = link_open(front->daemon, PEER_POLICY, &events, &front->policy_link, err);
	return rc;
}

void links_close(struct front *front)
{
	if (front->cache_link != NULL)
		link_close(&front->cache_link);
	if (front->policy_link != NULL)
		link_close(&front->policy_link);
}

bool links_cache_alive(void *arg)
{
	const struct front *front = arg;

	return front->cache_link != NULL && link_alive(front->cache_link);
}

/* Writes after a comma that a peer is not connected: it has not come so far yet, or there is none. */
static void away(const struct front *front, const char *name, char *out, size_t out_bytes)
{
	const struct peer *peer = registry_peer(front->daemon, name);
	pid_t pid;
	bool known = peer->standing == PEER_REGISTERED;
	bool starts = known ? peer->card.state.stage < PEER_STOPPING
			    : peer->standing != PEER_REFUSED &&
				      peers_runs(daemon_runtime_dir(front->daemon), name, &pid);

	snprintf(out, out_bytes, starts ? ", the %s is starting" : ", no %s", name);
}

/* Writes what is wrong with the expert cache, after a comma. */
static void cache_state(struct front *front, char *out, size_t out_bytes)
{
	char refusal[160];

	out[0] = '\0';
	if (!cache_wanted(front))
		return;
	engine_refusal(front->engine, refusal, sizeof(refusal));
	if (!links_cache_alive(front))
		away(front, PEER_CACHE, out, out_bytes);
	else if (refusal[0] != '\0')
		snprintf(out, out_bytes, ", the expert-cache is not used: %s", refusal);
}

void links_state(struct front *front)
{
	char state[sizeof(front->state)], drafter[64] = "", policy[64] = "", cache[224];

	const char *model = front->model_lost ? ", the model file changed: no requests" : "";
	const char *admits = front->config->admit ? "" : ", no new requests";
	const char *stage = *model || *admits ? "draining" : "degraded";
	if (!front->drafter_here)
		away(front, PEER_DRAFTER, drafter, sizeof(drafter));
	if (front->policy_link == NULL || !link_alive(front->policy_link))
		away(front, PEER_POLICY, policy, sizeof(policy));
	cache_state(front, cache, sizeof(cache));
	snprintf(state, sizeof(state), "%s%s%s%s%s", model, admits, drafter, cache, policy);
	if (strcmp(state, front->state) == 0)
		return;
	memcpy(front->state, state, sizeof(state));
	if (state[0] == '\0')
		daemon_set_state(front->daemon, "ready");
	else
		daemon_set_state(front->daemon, "%s: %s", stage, state + 2);
}
