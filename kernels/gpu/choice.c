#include "kernels/gpu/choice.h"

#include "shared/base/error.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#define CUDA "cuda"
#define DIGITS "0123456789"

int gpu_choice_read(
	const char *text, enum gpu_choice *choice, const char **device, struct error *err)
{
	static const char *const names[] = {
		[GPU_CHOICE_CPU] = "cpu",
		[GPU_CHOICE_AUTO] = "auto",
		[GPU_CHOICE_CUDA] = CUDA,
		[GPU_CHOICE_SIMT] = "simt",
	};

	*device = "";
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		*choice = (enum gpu_choice)i;
		if (strcmp(text, names[i]) == 0)
			return 0;
	}
	*choice = GPU_CHOICE_CUDA;
	if (strncmp(text, CUDA ":", strlen(CUDA ":")) == 0)
		*device = text + strlen(CUDA ":");
	if (**device != '\0' && (strspn(*device, DIGITS) == strlen(*device) ||
					strncmp(*device, "GPU-", strlen("GPU-")) == 0))
		return 0;
	return error_set(err, ENOEXEC,
		"device = %s is not allowed; device takes cpu, auto, cuda:N, cuda:GPU-UUID or simt",
		*text ? text : "\"\"");
}
