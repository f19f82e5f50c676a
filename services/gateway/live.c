#include "services/gateway/live.h"

#include "services/gateway/gateway.h"
#include "services/gateway/listen.h"
#include "shared/base/log.h"
#include "shared/base/options.h"
#include "shared/ipc/daemon_knobs.h"

#include <string.h>
#include <sys/stat.h>

int live_check(const struct gateway_config *config, struct error *err)
{
	return listen_check(config->listen, err);
}

static int check(const void *next, struct error *err)
{
	return live_check(next, err);
}

/* Identifies the file and its version; all zero: there is no file. */
static struct keys_stamp stamp_of(const char *path)
{
	struct stat st;

	if (!*path || stat(path, &st) < 0)
		return (struct keys_stamp){0};
	return (struct keys_stamp){(uint64_t)st.st_ino, (uint64_t)st.st_size,
		(uint64_t)st.st_mtim.tv_sec, (uint64_t)st.st_mtim.tv_nsec};
}

static bool same_stamp(const struct keys_stamp *a, const struct keys_stamp *b)
{
	return a->inode == b->inode && a->bytes == b->bytes && a->s == b->s && a->ns == b->ns;
}

/* Keys of the file at path, or none. */
static int read_keys(struct gateway *gateway, const char *path, struct error *err)
{
	struct keys fresh;
	/* Taken before the file is read, so that a change meanwhile is noticed at the next tick. */
	struct keys_stamp stamp = stamp_of(path);
	int code = keys_read(&fresh, path, err);

	gateway->keys_stamp = stamp;
	if (code == 0)
		keys_replace(&gateway->keys, &fresh);
	return code;
}

static int apply(void *arg, const void *next, struct error *err)
{
	struct gateway *gateway = arg;
	const struct gateway_config *config = next;

	if (strcmp(config->keys, gateway->config->keys) == 0)
		return 0;
	return read_keys(gateway, config->keys, err);
}

/* Checks that the file of keys can be read, without using it. */
static int rehearse(void *arg, const void *next, struct error *err)
{
	const struct gateway_config *config = next;
	struct keys keys;
	int code = keys_read(&keys, config->keys, err);

	(void)arg;
	if (code == 0)
		keys_free(&keys);
	return code;
}

int live_open(struct gateway *gateway, struct gateway_config *config, const struct options *options,
	struct error *err)
{
	const struct daemon_knobs knobs = {
		.keys = gateway_keys,
		.config = config,
		.config_bytes = sizeof *config,
		.check = check,
		.rehearse = rehearse,
		.apply = apply,
		.arg = gateway,
		.config_path = options->config_path,
		.on_command_line = options->on_command_line,
	};

	gateway->keys_stamp = stamp_of(config->keys);
	return daemon_knobs_open(gateway->daemon, &knobs, err);
}

void live_tick(struct gateway *gateway)
{
	const char *path = gateway->config->keys;
	struct error err = {""};

	if (!*path)
		return;
	struct keys_stamp now = stamp_of(path);
	if (same_stamp(&now, &gateway->keys_stamp))
		return;
	if (read_keys(gateway, path, &err) < 0)
		log_error("%s; the keys stay as they were", err.text);
	else
		log_notice("%s: %zu key%s", path, gateway->keys.n, gateway->keys.n == 1 ? "" : "s");
}
