#include "kernels/gpu/backend.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FILE_NAME "outrider-backend-cuda.so"
#define PATH_MAX_BYTES 4096

/* The shared object lies beside the program, or where `make install` puts it. NULL: nowhere. */
static const char *find_file(char path[PATH_MAX_BYTES])
{
	static const char *const places[] = {FILE_NAME, "../lib/outrider/" FILE_NAME};
	char program[PATH_MAX_BYTES];
	ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
	char *slash = n > 0 ? memrchr(program, '/', (size_t)n) : NULL;

	if (!slash)
		return NULL;
	slash[1] = '\0';
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		int length = snprintf(path, PATH_MAX_BYTES, "%s%s", program, places[i]);

		if (length < PATH_MAX_BYTES && access(path, F_OK) == 0)
			return path;
	}
	return NULL;
}

int backend_cuda_create(
	const struct backend_gpu_options *options, struct backend **out, struct error *err)
{
	char path[PATH_MAX_BYTES];
	backend_create *create;

	if (!find_file(path))
		return error_set(err, ENOENT,
			FILE_NAME " is neither beside the program nor in ../lib/outrider (make "
				  "cuda builds it)");
	/* Never closed: the table and the kernels are used until the process ends. */
	void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!file)
		return error_set(err, ENOEXEC, "%s cannot be loaded: %s", path, dlerror());
	const char *interface = dlsym(file, BACKEND_CUDA_INTERFACE);
	void *symbol = dlsym(file, BACKEND_CUDA_CREATE);
	if (!interface || !symbol || strcmp(interface, BACKEND_INTERFACE) != 0)
		return error_set(err, ENOEXEC,
			"%s is of another version: %.60s, but this program needs " BACKEND_INTERFACE
			" (make cuda builds it again)",
			path, interface ? interface : "none is named");
	memcpy(&create, &symbol, sizeof(create));
	return create(options, out, err);
}
