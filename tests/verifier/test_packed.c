/* Packed weights: of a file as it is, and of none that changes meanwhile; beside an expert-cache that says what it takes, or not. */
#include "services/verifier/state/packed.h"
#include "shared/base/memory.h"
#include "shared/ipc/hello.h"
#include "shared/ipc/peers.h"
#include "shared/model/arch/weights.h"
#include "shared/spec/slots.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MODEL "models/outrider-demo-moe-q8_0.gguf"

static const struct resources_needs no_needs;

struct rig {
	char directory[64], path[96];
	struct verifier_config config;
	struct daemon *daemon;
	struct broker *broker;
	int left; /* what a predecessor left: nothing */
	struct model *model;
};

static int set_up(void **state)
{
	struct rig *rig = calloc(1, sizeof(*rig));
	struct error err = {.text = ""};
	char command[256];

	strcpy(rig->directory, "/var/tmp/outrider-packed-XXXXXX");
	assert_non_null(mkdtemp(rig->directory));
	snprintf(rig->path, sizeof(rig->path), "%s/model.gguf", rig->directory);
	snprintf(command, sizeof(command), "cp %s %s && chmod u+w %s", MODEL, rig->path, rig->path);
	assert_int_equal(system(command), 0);
	config_defaults(verifier_config_keys, &rig->config);
	rig->config.threads = 1;
	rig->config.weights = VERIFIER_WEIGHTS_PACKED;
	rig->config.experts = VERIFIER_EXPERTS_MAPPED;
	const struct daemon_options options = {
		.name = PEER_VERIFIER, .runtime_dir = rig->directory};
	rig->left = -1;
	if (daemon_create(&options, &rig->daemon, &err) != 0 ||
		broker_open(rig->daemon, NULL, &rig->broker, &err) != 0 ||
		model_load(rig->path, &rig->model, &err) != 0)
		fail_msg("%s", err.text);
	*state = rig;
	return 0;
}

static int tear_down(void **state)
{
	struct rig *rig = *state;
	char command[128];

	model_free(&rig->model);
	broker_close(&rig->broker);
	daemon_destroy(&rig->daemon);
	snprintf(command, sizeof(command), "rm -rf %s", rig->directory);
	assert_int_equal(system(command), 0);
	free(rig);
	return 0;
}

static void a_file_that_stays_is_packed(void **state)
{
	struct rig *rig = *state;
	struct error err = {.text = ""};
	struct region packed;

	if (packed_open(rig->daemon, rig->broker, &rig->left, &rig->config, &no_needs, rig->model,
		    &packed, &err) != 0)
		fail_msg("%s", err.text);
	assert_non_null(packed.header);
	region_close(&packed);
}

/* Between the opening and the packing, or during it: what was packed is half of one file and half of another. */
static void of_a_file_that_changed_nothing_is_packed(void **state)
{
	struct rig *rig = *state;
	struct error err = {.text = ""};
	struct region packed;
	int fd = open(rig->path, O_WRONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, "other", 5, 10 << 20), 5);
	close(fd);
	assert_int_equal(packed_open(rig->daemon, rig->broker, &rig->left, &rig->config, &no_needs,
				 rig->model, &packed, &err),
		-ESTALE);
	assert_null(packed.header);
	assert_non_null(strstr(err.text, "was written to"));
}

/* ---- What is asked of the expert-cache, where it matters. ---- */

enum answer {
	NOBODY, /* is there */
	SILENT, /* while it starts */
	REFUSES, /* as one does that does not know the question */
	OF_ANOTHER_BUILD, /* is its region */
	NO_SLOTS, /* are in it */
	LITTLE, /* with numbers that cannot be */
};

struct cache {
	int socket;
	pid_t pid;
	_Atomic int *looks;
};

static void answer_look(int connection, enum answer answer, const struct region *region)
{
	struct hello_answer packet;
	struct hello hello;
	struct error err;

	while (hello_receive(connection, &hello, &err) == -EAGAIN)
		usleep(1000);
	hello_answer_init(
		&packet, answer == REFUSES ? HELLO_REFUSED : HELLO_REGIONS, PEER_CACHE, 1);
	if (answer == REFUSES) {
		strcpy(packet.reason, "hello of unknown kind 4");
	} else {
		packet.n = 1;
		strcpy(packet.regions[0], EXPERTS_REGION);
	}
	hello_send(connection, &packet, sizeof(packet), &region->fd, packet.n);
	close(connection);
}

static void run_cache(const struct cache *cache, enum answer answer)
{
	struct region region;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (region_create(EXPERTS_REGION, EXPERTS_LAYOUT + (answer == OF_ANOTHER_BUILD),
		    sizeof(struct slots_header), 0, &region, NULL) != 0)
		_exit(1);
	struct slots_header *header = region_payload(&region);
	header->slot_bytes = answer == NO_SLOTS ? 0 : 1 << 20;
	header->budget = 2;
	header->in_use = UINT32_MAX;
	for (;;) {
		int connection = accept4(cache->socket, NULL, NULL, SOCK_NONBLOCK);

		if (connection < 0)
			_exit(1);
		++*cache->looks;
		answer_look(connection, answer, &region);
	}
}

static void start_cache(const struct rig *rig, enum answer answer, struct cache *out)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	*out = (struct cache){.socket = -1};
	out->looks = mmap(NULL, sizeof(*out->looks), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(out->looks != MAP_FAILED);
	if (answer == NOBODY)
		return;
	peers_socket_path(rig->directory, PEER_CACHE, address.sun_path, sizeof(address.sun_path));
	out->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(out->socket, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(out->socket, LIMIT_PEERS), 0);
	if (answer == SILENT)
		return;
	out->pid = fork();
	assert_true(out->pid >= 0);
	if (out->pid == 0)
		run_cache(out, answer);
}

/* How often it was asked. */
static int end_cache(const struct cache *cache)
{
	int looks, fd;

	if (cache->pid > 0) {
		kill(cache->pid, SIGKILL);
		waitpid(cache->pid, NULL, 0);
	} else if (cache->socket >= 0) {
		fcntl(cache->socket, F_SETFL, O_NONBLOCK);
		while ((fd = accept(cache->socket, NULL, NULL)) >= 0) {
			++*cache->looks;
			close(fd);
		}
	}
	if (cache->socket >= 0)
		close(cache->socket);
	looks = *cache->looks;
	munmap((void *)cache->looks, sizeof(*cache->looks));
	return looks;
}

/* Room for the copy beside few experts, and none beside all. Returns how often the cache was asked; *said: whether its silence
 * was said, and what of. */
static int pack_beside(
	struct rig *rig, enum answer answer, bool *is_packed, int *said, const char *why)
{
	const struct resources_needs needs = {.experts = 1 << 20, .experts_all = UINT64_MAX / 4};
	struct error err = {.text = ""};
	struct region packed;
	struct cache cache;
	char path[96], line[512];

	rig->config.weights = VERIFIER_WEIGHTS_AUTO;
	start_cache(rig, answer, &cache);
	snprintf(path, sizeof(path), "%s/log", rig->directory);
	int log = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), before = dup(2);
	assert_true(log >= 0 && before >= 0 && dup2(log, 2) == 2);
	int rc = packed_open(rig->daemon, rig->broker, &rig->left, &rig->config, &needs, rig->model,
		&packed, &err);
	assert_int_equal(dup2(before, 2), 2);
	close(before);
	FILE *lines = fdopen(log, "r");
	assert_non_null(lines);
	rewind(lines);
	for (*said = 0; fgets(line, sizeof(line), lines) != NULL;)
		*said += strstr(line, PEER_CACHE " ") != NULL && strstr(line, why) != NULL;
	fclose(lines);
	int looks = end_cache(&cache);
	if (rc != 0)
		fail_msg("%s", err.text);
	*is_packed = packed.header != NULL;
	if (*is_packed)
		region_close(&packed);
	return looks;
}

static void beside_a_cache_that_is_not_there_weights_are_packed(void **state)
{
	bool is_packed;
	int said;

	assert_int_equal(pack_beside(*state, NOBODY, &is_packed, &said, ""), 0);
	assert_true(is_packed);
	assert_int_equal(said, 0);
}

static void beside_one_that_does_not_answer_they_are_not(void **state)
{
	bool is_packed;
	int said, looks = pack_beside(*state, SILENT, &is_packed, &said, "no answer in 300 ms");

	assert_false(is_packed);
	assert_int_equal(said, 1);
	/* What it finds when it has started leaves room for its peers. */
	assert_in_range(looks, 1, LIMIT_PEERS - 2);
}

static void one_that_refuses_is_asked_once(void **state)
{
	bool is_packed;
	int said, looks = pack_beside(*state, REFUSES, &is_packed, &said, "unknown kind 4");

	assert_false(is_packed);
	assert_int_equal(said, 1);
	assert_int_equal(looks, 1);
}

static void so_is_one_whose_region_says_nothing(void **state)
{
	static const struct {
		enum answer answer;
		const char *why;
	} cases[] = {{OF_ANOTHER_BUILD, "layout"}, {NO_SLOTS, "a slot of 0 bytes"}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		bool is_packed;
		int said, looks = pack_beside(
				  *state, cases[i].answer, &is_packed, &said, cases[i].why);

		assert_false(is_packed);
		assert_int_equal(said, 1);
		assert_int_equal(looks, 1);
		struct rig *rig = *state;
		char path[96];
		peers_socket_path(rig->directory, PEER_CACHE, path, sizeof(path));
		unlink(path);
	}
}

static void one_that_has_more_than_it_may_takes_what_it_may(void **state)
{
	bool is_packed;
	int said;

	assert_int_equal(pack_beside(*state, LITTLE, &is_packed, &said, ""), 1);
	assert_true(is_packed);
	assert_int_equal(said, 0);
}

/* What is available is what there is beside what is there. */
static void pack_beside_what_is_there(struct rig *rig, bool in_kv)
{
	struct resources_needs needs = {0};
	struct error err = {.text = ""};
	struct memory_limit limit;
	struct region packed;

	rig->config.weights = VERIFIER_WEIGHTS_AUTO;
	memory_limit_now(&limit);
	uint64_t more = weights_bytes(rig->model, WEIGHTS_ALL) + (64 << 20);
	if (limit.bytes < limit.available + more || limit.available < 2 * more)
		skip(); /* nothing else is in use, or everything */
	if (in_kv)
		needs.kv = needs.kv_there = limit.available;
	else
		needs.buffers = needs.there = limit.available;
	if (packed_open(rig->daemon, rig->broker, &rig->left, &rig->config, &needs, rig->model,
		    &packed, &err) != 0)
		fail_msg("%s", err.text);
	assert_non_null(packed.header);
	region_close(&packed);
}

static void a_kv_cache_that_was_taken_over_needs_no_room_again(void **state)
{
	pack_beside_what_is_there(*state, true);
}

static void nor_does_what_is_allocated_already(void **state)
{
	pack_beside_what_is_there(*state, false);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(a_file_that_stays_is_packed),
		CASE(of_a_file_that_changed_nothing_is_packed),
		CASE(beside_a_cache_that_is_not_there_weights_are_packed),
		CASE(beside_one_that_does_not_answer_they_are_not),
		CASE(one_that_refuses_is_asked_once),
		CASE(so_is_one_whose_region_says_nothing),
		CASE(one_that_has_more_than_it_may_takes_what_it_may),
		CASE(a_kv_cache_that_was_taken_over_needs_no_room_again),
		CASE(nor_does_what_is_allocated_already),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
