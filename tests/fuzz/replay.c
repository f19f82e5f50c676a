/* Runs a fuzz target over its seed corpus, tests/fuzz/corpus/PROGRAM, and prints TAP; a crash ends the program, which
 * tests/fuzz/corpora.t reports. Arguments, where given, are the inputs instead. */
#include <dirent.h>
#include <errno.h>
#include <libgen.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* 0 or -errno. The buffer is exactly as long as the file, so that a sanitizer sees a read behind its end. */
static int replay(const char *path)
{
	FILE *f = fopen(path, "rb");
	if (!f)
		return -errno;
	int rc = 0;
	long bytes = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
	uint8_t *data = bytes < 0 ? NULL : malloc(bytes ? (size_t)bytes : 1);
	rewind(f);
	if (!data || fread(data, 1, (size_t)bytes, f) != (size_t)bytes)
		rc = -EIO;
	else
		LLVMFuzzerTestOneInput(data, (size_t)bytes);
	free(data);
	fclose(f);
	return rc;
}

static int report(int number, const char *path)
{
	int rc = replay(path);
	printf("%sok %d - %s%s%s\n", rc ? "not " : "", number, path, rc ? ": " : "",
		rc ? strerror(-rc) : "");
	fflush(stdout);
	return rc != 0;
}

static int is_input(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

int main(int argc, char **argv)
{
	int n = 0, failed = 0;
	for (int i = 1; i < argc; i++)
		failed += report(++n, argv[i]);
	if (argc == 1) {
		char dir[256], path[600];
		struct dirent **entries;
		snprintf(dir, sizeof(dir), "tests/fuzz/corpus/%.200s", basename(argv[0]));
		int found = scandir(dir, &entries, is_input, alphasort);
		for (int i = 0; i < found; i++) {
			snprintf(path, sizeof(path), "%s/%s", dir, entries[i]->d_name);
			failed += report(++n, path);
			free(entries[i]);
		}
		if (found >= 0)
			free(entries);
		if (found <= 0) {
			printf("not ok %d - %s has no seeds\n", ++n, dir);
			failed++;
		}
	}
	printf("1..%d\n", n);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
