/* The real outrider-expert-cache, met by a verifier of ours through its broker: every expert's bytes, a kill -9 in between,
 * its successor, its admin messages. */
#include "kernels/cpu/steps/backend_cpu.h"
#include "kernels/kernels.h"
#include "kernels/tiles.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/base/patience.h"
#include "shared/ipc/broker.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/link.h"
#include "shared/ipc/peers.h"
#include "shared/spec/slots.h"
#include "tests/until.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include <cmocka.h>

#define MODEL "models/outrider-demo-moe-q8_0.gguf"
#define DENSE "models/outrider-demo-draft-small-q8_0.gguf"
#define WAIT_NS 30000000000ull

static char runtime_dir[] = "/tmp/outrider-cache-XXXXXX";
static char program[4096];

/* What a verifier has: a loop thread with broker and link, and the last region the cache offered. */
struct verifier {
	struct daemon *daemon;
	struct broker *broker;
	struct link *link;
	pthread_t thread;
	pthread_mutex_t lock;
	struct region region, hints; /* under lock; fd -1: none yet */
	struct model *model;
	struct backend *backend;
	struct experts_cached *cached;
};

static int on_regions(
	void *arg, const char *peer, const char *const *names, const int *fds, size_t n)
{
	struct verifier *verifier = arg;
	(void)peer;
	for (size_t i = 0; i < n; i++) {
		struct region region;
		struct error err;
		bool hints = strcmp(names[i], HINTS_REGION) == 0;
		if (!hints && strcmp(names[i], EXPERTS_REGION) != 0)
			continue;
		int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
		if (region_attach(fd, names[i], hints ? HINTS_LAYOUT : EXPERTS_LAYOUT, REGION_DATA,
			    true, &region, &err) != 0)
			continue;
		broker_keep(verifier->broker, &region);
		struct region *kept = hints ? &verifier->hints : &verifier->region;
		pthread_mutex_lock(&verifier->lock);
		region_close(kept);
		*kept = region;
		pthread_mutex_unlock(&verifier->lock);
	}
	return 0;
}

static bool cache_alive(void *arg)
{
	return link_alive(((const struct verifier *)arg)->link);
}

static void *loop_thread(void *arg)
{
	daemon_run(((struct verifier *)arg)->daemon);
	return NULL;
}

static void verifier_start(struct verifier *verifier)
{
	struct error err = {.text = ""};
	memset(verifier, 0, sizeof(*verifier));
	verifier->region.fd = verifier->hints.fd = -1;
	pthread_mutex_init(&verifier->lock, NULL);
	struct daemon_options options = {.name = PEER_VERIFIER, .runtime_dir = runtime_dir};
	assert_int_equal(daemon_create(&options, &verifier->daemon, &err), 0);
	assert_int_equal(broker_open(verifier->daemon, NULL, &verifier->broker, &err), 0);
	assert_int_equal(daemon_admin_open(verifier->daemon, NULL, NULL, &err), 0);
	struct link_events events = {.regions = on_regions, .arg = verifier};
	assert_int_equal(
		link_open(verifier->daemon, PEER_CACHE, &events, &verifier->link, &err), 0);
	assert_int_equal(model_load(MODEL, &verifier->model, &err), 0);
	const struct backend_cpu_options cpu = {
		.kernels = kernels_select(NULL, &err), .threads = 1};
	assert_int_equal(backend_cpu_create(&cpu, &verifier->backend, &err), 0);
	struct experts_cached_options cached = {.backend = verifier->backend,
		.patience_ns = WAIT_NS,
		.generation = daemon_generation(verifier->daemon),
		.cache_alive = cache_alive,
		.arg = verifier};
	assert_int_equal(
		experts_cached_create(verifier->model, &cached, &verifier->cached, &err), 0);
	assert_int_equal(pthread_create(&verifier->thread, NULL, loop_thread, verifier), 0);
}

static void verifier_stop(struct verifier *verifier)
{
	daemon_stop(verifier->daemon, 0);
	pthread_join(verifier->thread, NULL);
	experts_cached_destroy(&verifier->cached);
	verifier->backend->ops->destroy(verifier->backend);
	link_close(&verifier->link);
	broker_close(&verifier->broker);
	daemon_destroy(&verifier->daemon);
	region_close(&verifier->region);
	region_close(&verifier->hints);
	model_free(&verifier->model);
	pthread_mutex_destroy(&verifier->lock);
}

static pid_t start_cache(const char *model, const char *budget)
{
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid != 0)
		return pid;
	/* A test that fails leaves nobody behind. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	execl(program, program, "--runtime-dir", runtime_dir, "--model", model, "--budget", budget,
		"-d", (char *)NULL);
	_exit(127);
}

static int wait_status(pid_t pid)
{
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* Until the cache that serves is not the one of generation `before`; its generation. */
static uint64_t wait_cache(struct verifier *verifier, uint64_t before)
{
	struct patience patience;
	uint64_t generation = 0;
	patience_init(&patience, WAIT_NS / 1000000);
	while (patience_step_ms(&patience) > 0) {
		pthread_mutex_lock(&verifier->lock);
		if (verifier->region.fd >= 0 && verifier->hints.fd >= 0 &&
			link_alive(verifier->link)) {
			generation = atomic_load(&verifier->region.header->generation);
		}
		pthread_mutex_unlock(&verifier->lock);
		if (generation != 0 && generation != before)
			return generation;
		usleep(2000);
	}
	fail_msg("the cache did not come up within 30 s");
	return 0;
}

static void attach(struct verifier *verifier)
{
	struct error err = {.text = ""};
	pthread_mutex_lock(&verifier->lock);
	int status =
		experts_cached_attach(verifier->cached, &verifier->region, &verifier->hints, &err);
	pthread_mutex_unlock(&verifier->lock);
	if (status != 0)
		fail_msg("%s", err.text);
}

static const unsigned char *in_file(const struct expert_tensor *tensor, uint32_t expert)
{
	return (const unsigned char *)tensor->shape.data + expert * tensor->expert_bytes;
}

static const unsigned char *place_at(struct place place)
{
	return place.buffer->host + place.offset;
}

/* A matrix as it was served: the file's bytes, or those packed. */
static void check_matrix(const void *served, enum matrix_layout layout,
	const struct expert_tensor *tensor, uint32_t e)
{
	struct matrix w = tensor->shape;
	w.data = in_file(tensor, e);
	if (layout == LAYOUT_ROWS) {
		assert_memory_equal(served, w.data, tensor->expert_bytes);
		return;
	}
	void *packed = malloc(tensor->expert_bytes);
	assert_non_null(packed);
	assert_true(tiles_possible(&w));
	tiles_pack(&w, 0, w.rows, packed);
	assert_memory_equal(served, packed, tensor->expert_bytes);
	free(packed);
}

/* Every expert of every layer, eight at a time, against the file; how many came packed. */
static uint32_t read_every_expert(struct verifier *verifier)
{
	uint32_t n_packed = 0;
	const struct model *model = verifier->model;
	struct expert_source *source = experts_cached_source(verifier->cached);
	for (uint32_t l = 0; l < model->config.n_layers; l++) {
		const struct layer *layer = &model->layers[l];
		for (uint32_t first = 0; first < model->config.n_experts; first += 8) {
			uint16_t experts[8], tokens[8] = {1, 1, 1, 1, 1, 1, 1, 1};
			struct expert_view views[8];
			uint32_t got = 0;
			for (uint16_t i = 0; i < 8; i++)
				experts[i] = (uint16_t)(first + i);
			source->ops->begin(source, l, experts, tokens, 8);
			for (int k; (k = source->ops->ready(source, views)) > 0; got += (uint32_t)k)
				for (int i = 0; i < k; i++) {
					uint32_t e = experts[views[i].index];
					enum matrix_layout layout = views[i].layout;
					n_packed += layout == LAYOUT_TILES;
					check_matrix(
						place_at(views[i].gate), layout, &layer->gate, e);
					check_matrix(place_at(views[i].up), layout, &layer->up, e);
					check_matrix(
						place_at(views[i].down), layout, &layer->down, e);
				}
			source->ops->end(source);
			assert_int_equal(got, 8);
		}
	}
	return n_packed;
}

/* The loop thread maps the region anew when the cache comes back. */
static uint64_t self_served(struct verifier *verifier)
{
	pthread_mutex_lock(&verifier->lock);
	const struct slots_header *header = region_payload(&verifier->region);
	uint64_t n = atomic_load(&header->self_served);
	pthread_mutex_unlock(&verifier->lock);
	return n;
}

static uint64_t region_uid(struct verifier *verifier)
{
	pthread_mutex_lock(&verifier->lock);
	uint64_t uid = verifier->region.header->uid;
	pthread_mutex_unlock(&verifier->lock);
	return uid;
}

/* An admin request of the given kind; the caller frees the reply. */
static Outrider__Envelope *ask(Outrider__Envelope *request)
{
	char endpoint[512];
	struct error err = {.text = ""};
	Outrider__Envelope *reply = NULL;
	void *zmq = zmq_ctx_new();
	peers_admin_endpoint(runtime_dir, PEER_CACHE, endpoint, sizeof(endpoint));
	struct patience patience;
	int status;
	patience_init(&patience, WAIT_NS / 1000000);
	do
		status = bus_call(zmq, endpoint, request, 1000, NULL, &reply, &err);
	while (status != 0 && patience_step_ms(&patience) > 0);
	zmq_ctx_term(zmq);
	if (status != 0)
		fail_msg("%s", err.text);
	return reply;
}

static void need_model(void)
{
	if (access(MODEL, R_OK) == 0)
		return;
	print_message("# no " MODEL "\n");
	skip();
}

static void experts_survive_a_kill_of_the_cache_and_its_restart(void **state)
{
	(void)state;
	need_model();
	struct verifier verifier;
	verifier_start(&verifier);
	pid_t pid = start_cache(MODEL, "25%");
	uint64_t generation = wait_cache(&verifier, 0);
	attach(&verifier);
	read_every_expert(&verifier);
	read_every_expert(&verifier);
	assert_int_equal(self_served(&verifier), 0);

	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(wait_status(pid), 1000 + SIGKILL);
	UNTIL(!link_alive(verifier.link));
	read_every_expert(&verifier);
	/* 48 slots of 192 experts: those are still used, the rest came from the file. */
	uint64_t served = self_served(&verifier);
	assert_in_range(served, 192 - 48, 192 - 1);

	uint64_t uid = region_uid(&verifier);
	pid = start_cache(MODEL, "25%");
	generation = wait_cache(&verifier, generation);
	assert_true(region_uid(&verifier) == uid);
	attach(&verifier);
	read_every_expert(&verifier);
	assert_int_equal(self_served(&verifier), served);
	assert_int_equal(kill(pid, SIGTERM), 0);
	assert_int_equal(wait_status(pid), 0);
	verifier_stop(&verifier);
}

static void killed_again_and_again_the_bytes_stay_right(void **state)
{
	(void)state;
	need_model();
	struct verifier verifier;
	verifier_start(&verifier);
	uint64_t generation = 0;
	for (int round = 0; round < 8; round++) {
		pid_t pid = start_cache(MODEL, "20%");
		generation = wait_cache(&verifier, generation);
		attach(&verifier);
		/* Killed somewhere in the middle: in a load, most likely. */
		pid_t killer = fork();
		if (killer == 0) {
			usleep(500 + (useconds_t)round * 700);
			kill(pid, SIGKILL);
			_exit(0);
		}
		read_every_expert(&verifier);
		read_every_expert(&verifier);
		assert_int_equal(wait_status(killer), 0);
		assert_int_equal(wait_status(pid), 1000 + SIGKILL);
	}
	verifier_stop(&verifier);
}

static void stats_say_what_happened(void **state)
{
	(void)state;
	need_model();
	struct verifier verifier;
	verifier_start(&verifier);
	pid_t pid = start_cache(MODEL, "min");
	wait_cache(&verifier, 0);
	attach(&verifier);
	assert_int_equal(read_every_expert(&verifier), 0); /* loaded again and again: not packed */
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT;
	Outrider__CacheStatsRequest body = OUTRIDER__CACHE_STATS_REQUEST__INIT;
	body.per_layer = true;
	request.body_case = OUTRIDER__ENVELOPE__BODY_CACHE_STATS_REQUEST;
	request.cache_stats_request = &body;
	Outrider__Envelope *reply = ask(&request);
	assert_int_equal(reply->body_case, OUTRIDER__ENVELOPE__BODY_CACHE_STATS);
	const Outrider__CacheStats *stats = reply->cache_stats;
	assert_string_equal(stats->policy, "outrider");
	assert_int_equal(stats->slots, 32);
	assert_int_equal(stats->resident, 32);
	assert_int_equal(stats->pinned, 0);
	assert_int_equal(stats->misses, 192);
	assert_int_equal(stats->hits, 0);
	assert_int_equal(stats->loads, 192);
	assert_int_equal(stats->evictions, 160);
	assert_int_equal(stats->budget_bytes, stats->budget_min_bytes);
	assert_int_equal(stats->bytes_loaded, verifier.model->expert_bytes_total);
	assert_int_equal(stats->n_layers, 6);
	uint32_t resident = 0;
	for (size_t l = 0; l < stats->n_layers; l++) {
		assert_int_equal(stats->layers[l]->misses, 32);
		assert_int_equal(stats->layers[l]->loads, 32);
		resident += stats->layers[l]->resident;
	}
	assert_int_equal(resident, 32);
	bus_free(&reply);
	kill(pid, SIGTERM);
	assert_int_equal(wait_status(pid), 0);
	verifier_stop(&verifier);
}

static uint32_t said_pinned(void)
{
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT;
	Outrider__CacheStatsRequest body = OUTRIDER__CACHE_STATS_REQUEST__INIT;
	request.body_case = OUTRIDER__ENVELOPE__BODY_CACHE_STATS_REQUEST;
	request.cache_stats_request = &body;
	Outrider__Envelope *reply = ask(&request);
	assert_int_equal(reply->body_case, OUTRIDER__ENVELOPE__BODY_CACHE_STATS);
	uint32_t pinned = reply->cache_stats->pinned;
	bus_free(&reply);
	return pinned;
}

static void stats_leave_out_pins_of_a_dead_verifier(void **state)
{
	(void)state;
	need_model();
	struct verifier verifier;
	verifier_start(&verifier);
	pid_t pid = start_cache(MODEL, "all");
	wait_cache(&verifier, 0);
	attach(&verifier);
	assert_int_equal(read_every_expert(&verifier), 192);
	struct slots *slots = experts_cached_slots(verifier.cached);
	uint32_t epoch = slots_verifier_enter(slots);
	/* Not while it is packed. */
	while (slots_pin(slots, epoch, 1, 2) == SLOT_NONE)
		usleep(2000);
	assert_int_equal(said_pinned(), 1);
	(void)slots_verifier_enter(slots);
	assert_int_equal(said_pinned(), 0);
	kill(pid, SIGTERM);
	assert_int_equal(wait_status(pid), 0);
	verifier_stop(&verifier);
}

static void a_second_cache_is_refused_and_the_first_goes_on(void **state)
{
	(void)state;
	need_model();
	struct verifier verifier;
	verifier_start(&verifier);
	pid_t pid = start_cache(MODEL, "all");
	uint64_t generation = wait_cache(&verifier, 0);
	attach(&verifier);
	int status = wait_status(start_cache(MODEL, "all"));
	assert_true(status > 0 && status < 127);
	assert_int_equal(wait_cache(&verifier, 0), generation);
	assert_int_equal(read_every_expert(&verifier), 192); /* each is loaded once: packed */
	assert_int_equal(self_served(&verifier), 0);
	kill(pid, SIGTERM);
	assert_int_equal(wait_status(pid), 0);
	verifier_stop(&verifier);
}

static void a_dense_model_leaves_it_idle(void **state)
{
	(void)state;
	need_model();
	pid_t pid = start_cache(DENSE, "all");
	Outrider__Envelope request = OUTRIDER__ENVELOPE__INIT;
	Outrider__StatusRequest body = OUTRIDER__STATUS_REQUEST__INIT;
	request.body_case = OUTRIDER__ENVELOPE__BODY_STATUS_REQUEST;
	request.status_request = &body;
	struct patience patience;
	bool idle = false;
	patience_init(&patience, WAIT_NS / 1000000);
	while (!idle && patience_step_ms(&patience) > 0) {
		Outrider__Envelope *reply = ask(&request);
		assert_int_equal(reply->body_case, OUTRIDER__ENVELOPE__BODY_STATUS);
		idle = strcmp(reply->status->state, "idle: dense model") == 0;
		bus_free(&reply);
	}
	assert_true(idle);
	kill(pid, SIGTERM);
	assert_int_equal(wait_status(pid), 0);
}

static int group_init(void **state)
{
	(void)state;
	const char *build = getenv("B");
	snprintf(program, sizeof(program), "%s/outrider-expert-cache",
		build != NULL ? build : "build");
	return mkdtemp(runtime_dir) != NULL ? 0 : -1;
}

static int group_exit(void **state)
{
	(void)state;
	static const char *const names[] = {"verifier.sock", "verifier.lock", "expert-cache.sock",
		"expert-cache.lock", "expert-cache.ctl"};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char path[512];
		snprintf(path, sizeof(path), "%s/%s", runtime_dir, names[i]);
		unlink(path);
	}
	rmdir(runtime_dir);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(experts_survive_a_kill_of_the_cache_and_its_restart),
		cmocka_unit_test(killed_again_and_again_the_bytes_stay_right),
		cmocka_unit_test(stats_say_what_happened),
		cmocka_unit_test(stats_leave_out_pins_of_a_dead_verifier),
		cmocka_unit_test(a_second_cache_is_refused_and_the_first_goes_on),
		cmocka_unit_test(a_dense_model_leaves_it_idle),
	};
	log_init("test", 0);
	return cmocka_run_group_tests(tests, group_init, group_exit);
}
