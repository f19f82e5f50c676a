#include "client/cli/up_files.h"

#include "shared/base/lock_file.h"
#include "shared/ipc/bus.h"
#include "shared/ipc/peers.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void remove_endpoint(const char *endpoint)
{
	unlink(bus_ipc_path(endpoint));
}

static void clean_process(const char *runtime_dir, const char *name)
{
	char lock[300], path[300];
	pid_t holder;
	int fd;

	peers_lock_path(runtime_dir, name, lock, sizeof lock);
	/* While it is held, no process of that name can start as its files are removed. */
	if (lock_file_take(lock, &fd, &holder, NULL) < 0)
		return;
	peers_socket_path(runtime_dir, name, path, sizeof path);
	unlink(path);
	peers_admin_endpoint(runtime_dir, name, path, sizeof path);
	remove_endpoint(path);
	if (strcmp(name, PEER_VERIFIER) == 0) {
		peers_client_endpoint(runtime_dir, path, sizeof path);
		remove_endpoint(path);
	}
	lock_file_remove(lock, &fd);
}

/* up.pid is removed last, with its lock. */
static int stays(const struct dirent *entry)
{
	return entry->d_name[0] != '.' && strcmp(entry->d_name, "up.pid") != 0;
}

void up_files_clean(const char *runtime_dir, char *left, size_t bytes)
{
	struct dirent **entries = NULL;
	size_t used = 0;

	for (size_t i = 0; peers_all[i]; i++)
		clean_process(runtime_dir, peers_all[i]);
	left[0] = '\0';
	int n = scandir(runtime_dir, &entries, stays, alphasort);
	for (int i = 0; i < n; i++) {
		if (used < bytes)
			used += (size_t)snprintf(left + used, bytes - used, "%s%s",
				used ? ", " : "", entries[i]->d_name);
		free(entries[i]);
	}
	free(entries);
}
