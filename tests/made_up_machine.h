/* A directory with the files of a made-up machine: control groups and memory. For tests with
 * cmocka, one at a time. */
#pragma once

#include "shared/base/cgroup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char directory[64], membership[128], mount[128], meminfo[128];
static const struct cgroup_files files = {membership, mount};

/* name may have directories before it, which are made. */
static void write_file(const char *name, const char *text)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s", directory, name);
	for (char *p = path + strlen(directory) + 1; (p = strchr(p, '/')) != NULL; p++) {
		*p = '\0';
		mkdir(path, 0755);
		*p = '/';
	}
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

/* A set-up of cmocka's. */
static int make_directory(void **state)
{
	(void)state;
	snprintf(directory, sizeof(directory), "/tmp/outrider-machine-XXXXXX");
	if (mkdtemp(directory) == NULL)
		return -1;
	snprintf(membership, sizeof(membership), "%s/membership", directory);
	snprintf(mount, sizeof(mount), "%s/mount", directory);
	snprintf(meminfo, sizeof(meminfo), "%s/meminfo", directory);
	return 0;
}

static int remove_directory(void **state)
{
	char command[128];
	(void)state;
	snprintf(command, sizeof(command), "rm -rf %s", directory);
	return system(command);
}
