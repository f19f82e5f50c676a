#include "kernels/gpu/backend.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FILE_NAME "outrider-backend-cuda.so"

/* The shared object lies beside the program; otherwise the dynamic linker looks for it. */
static void *open_file(void)
{
	char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - sizeof(FILE_NAME));
	char *slash = n > 0 ? memrchr(path, '/', (size_t)n) : NULL;

	if (slash) {
		memcpy(slash + 1, FILE_NAME, sizeof(FILE_NAME));
		if (access(path, F_OK) == 0)
			return dlopen(path, RTLD_NOW | RTLD_LOCAL);
	}
	return dlopen(FILE_NAME, RTLD_NOW | RTLD_LOCAL);
}

int backend_cuda_create(
	const struct backend_gpu_options *options, struct backend **out, struct error *err)
{
	/* Never closed: the table and the kernels are used until the process ends. */
	void *file = open_file();
	backend_create *create;

	if (!file)
		return error_set(err, ENOENT,
			"the back end for GPUs cannot be loaded (make cuda builds it): %s",
			dlerror());
	void *symbol = dlsym(file, BACKEND_CUDA_CREATE);
	if (!symbol)
		return error_set(err, ENOEXEC, "%s is of another version", FILE_NAME);
	memcpy(&create, &symbol, sizeof(create));
	return create(options, out, err);
}
