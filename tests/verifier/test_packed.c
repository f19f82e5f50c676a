/* Packed weights: of a file as it is, and of none that changes meanwhile. */
#include "services/verifier/packed.h"
#include "shared/ipc/peers.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_file_that_stays_is_packed, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			of_a_file_that_changed_nothing_is_packed, set_up, tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
