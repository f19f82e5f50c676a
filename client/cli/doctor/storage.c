#include "client/cli/doctor/storage.h"

#include "shared/base/memory.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

/* Decodes the octal escapes that the kernel writes for blanks ("\040"), in place. */
static void unescape(char *text)
{
	char *to = text;

	for (const char *from = text; *from; to++) {
		if (from[0] == '\\' && strspn(from + 1, "01234567") >= 3) {
			*to = (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0'));
			from += 4;
		} else {
			*to = *from++;
		}
	}
	*to = '\0';
}

/* Whether the path lies in the directory. */
static bool is_below(const char *path, const char *directory)
{
	size_t n = strlen(directory);

	return strcmp(directory, "/") == 0 ||
	       (strncmp(path, directory, n) == 0 && (path[n] == '/' || path[n] == '\0'));
}

static bool is_among(const char *type, const char *const *names)
{
	while (*names && strcmp(*names, type) != 0)
		names++;
	return *names != NULL;
}

static void take(struct storage *out, const char *type, const char *source)
{
	static const char *const network[] = {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "afs",
		"lustre", "glusterfs", "fuse.sshfs", "fuse.glusterfs", NULL};
	static const char *const memory[] = {"tmpfs", "ramfs", NULL};

	snprintf(out->type, sizeof(out->type), "%.31s", type);
	snprintf(out->source, sizeof(out->source), "%.95s", source);
	out->network = is_among(type, network);
	out->memory = is_among(type, memory);
}

/* "36 35 98:0 /root /mount/point options fields... - type source options": the longest mount point
 * that contains the path counts, and among equal ones the last. */
bool storage_find(const char *mountinfo, const char *path, struct storage *out)
{
	FILE *file = fopen(mountinfo, "re");
	char *line = NULL;
	size_t room = 0, longest = 0;
	bool found = false;

	while (file && getline(&line, &room, file) > 0) {
		char *rest = strstr(line, " - "), *field = line, *save;

		for (int i = 0; field && i < 4; i++)
			field = strchr(field, ' ') ? strchr(field, ' ') + 1 : NULL;
		if (!rest || !field || field > rest)
			continue;
		char *type = strtok_r(rest + 3, " \n", &save);
		char *source = type ? strtok_r(NULL, " \n", &save) : NULL;
		field[strcspn(field, " ")] = '\0';
		unescape(field);
		if (!source || !is_below(path, field) || strlen(field) < longest)
			continue;
		longest = strlen(field);
		unescape(source);
		take(out, type, source);
		found = true;
	}
	free(line);
	if (file)
		fclose(file);
	return found;
}

/* Disks of virtual machines claim to rotate, whatever they are. */
static bool is_virtual(const char *source)
{
	return strncmp(source, "/dev/vd", 7) == 0 || strncmp(source, "/dev/xvd", 8) == 0;
}

/* For a disk, or the disk of a partition. */
static int rotates(const char *root, dev_t device)
{
	static const char *const places[] = {"queue", "../queue"};
	char name[PATH_MAX];
	int value = -1;

	for (size_t i = 0; value < 0 && i < sizeof(places) / sizeof(places[0]); i++) {
		snprintf(name, sizeof(name), "%s/sys/dev/block/%u:%u/%s/rotational", root,
			major(device), minor(device), places[i]);
		FILE *file = fopen(name, "re");
		if (file) {
			int c = fgetc(file);
			value = c == '0' || c == '1' ? c - '0' : -1;
			fclose(file);
		}
	}
	return value;
}

void storage_read(const char *root, const char *path, int fd, struct storage *out)
{
	char mountinfo[PATH_MAX];
	char *real = realpath(path, NULL);
	struct statvfs fs;
	struct stat st;

	*out = (struct storage){
		.rotates = -1, .free_bytes = UINT64_MAX, .cached_bytes = memory_file_cached(fd)};
	snprintf(mountinfo, sizeof(mountinfo), "%s/proc/self/mountinfo", root);
	if (real)
		storage_find(mountinfo, real, out);
	free(real);
	if (fstat(fd, &st) == 0) {
		out->bytes = (uint64_t)st.st_size;
		if (!is_virtual(out->source))
			out->rotates = rotates(root, st.st_dev);
	}
	if (fstatvfs(fd, &fs) == 0)
		out->free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
}
