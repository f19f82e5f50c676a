#include "kernels/cpu/cpu.h"

#include "kernels/kernels.h"

#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

const struct kernels *const kernels_all[] = {
#if defined(__x86_64__)
	&kernels_avx512,
	&kernels_avx2,
#endif
	&kernels_scalar,
	&kernels_reference,
	NULL,
};

const char *const kernels_names[] = {"auto", "scalar", "avx2", "avx512", NULL};

bool kernels_scalar_supported(void)
{
	return true;
}

bool kernels_reference_supported(void)
{
	return true;
}

#if defined(__x86_64__)
static bool cpu_has_f16c(void)
{
	unsigned int eax, ebx, ecx, edx;

	return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C) != 0;
}

/* __builtin_cpu_supports also asks the operating system (XGETBV), which a bare CPUID bit does not.
 */
bool kernels_avx2_supported(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
}

bool kernels_avx512_supported(void)
{
	return kernels_avx2_supported() && __builtin_cpu_supports("avx512f") &&
	       __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
	       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}
#endif

const struct kernels *kernels_select(const char *name, struct error *err)
{
	bool any = name == NULL || strcmp(name, "auto") == 0;
	char known[128] = "";
	size_t used = 0;

	for (size_t i = 0; kernels_all[i]; i++) {
		const struct kernels *k = kernels_all[i];

		if (any && k->supported())
			return k;
		if (!any && strcmp(name, k->name) == 0) {
			if (k->supported())
				return k;
			error_set(err, ENOTSUP, "this CPU cannot run the %s kernels", name);
			return NULL;
		}
	}
	/* Cut short if it ever became longer: it is text for a person. */
	for (size_t i = 0; kernels_names[i] && used < sizeof(known); i++)
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s",
			i > 0 ? ", " : "", kernels_names[i]);
	error_set(err, EINVAL, "there are no kernels called \"%s\", allowed are %s",
		any ? "auto" : name, known);
	return NULL;
}

const char *kernels_notice(const struct kernels *kernels, const char *name)
{
	if (kernels != &kernels_scalar)
		return NULL;
	if (name == NULL || strcmp(name, "auto") == 0)
		return "this CPU has no AVX2 (with FMA and F16C): the scalar kernels are used, "
		       "which give the same bits many times slower";
	return "kernels = scalar is set: it gives the same bits as kernels = auto, many times "
	       "slower";
}
