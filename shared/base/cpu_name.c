#include "shared/base/cpu_name.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As Linux distinguishes them: AMD's in arch/x86/kernel/cpu/amd.c (bsp_init_amd), Intel's in
 * arch/x86/include/asm/intel-family.h. Only those that run AVX2 kernels. The first row that fits
 * counts. */
static const struct microarchitecture {
	bool amd;
	uint8_t family, first, last; /* first..last: range of models */
	const char *name;
} microarchitectures[] = {
	{true, 23, 0x00, 0x2f, "Zen"},
	{true, 23, 0x50, 0x5f, "Zen"},
	{true, 23, 0x30, 0x4f, "Zen 2"},
	{true, 23, 0x60, 0x7f, "Zen 2"},
	{true, 23, 0x90, 0x91, "Zen 2"},
	{true, 23, 0xa0, 0xaf, "Zen 2"},
	{true, 25, 0x00, 0x0f, "Zen 3"},
	{true, 25, 0x20, 0x5f, "Zen 3"},
	{true, 25, 0x10, 0x1f, "Zen 4"},
	{true, 25, 0x60, 0xaf, "Zen 4"},
	{true, 26, 0x00, 0x2f, "Zen 5"},
	{true, 26, 0x40, 0x4f, "Zen 5"},
	{true, 26, 0x60, 0x7f, "Zen 5"},
	{false, 6, 0x3c, 0x3c, "Haswell"},
	{false, 6, 0x3f, 0x3f, "Haswell"},
	{false, 6, 0x45, 0x46, "Haswell"},
	{false, 6, 0x3d, 0x3d, "Broadwell"},
	{false, 6, 0x47, 0x47, "Broadwell"},
	{false, 6, 0x4f, 0x4f, "Broadwell"},
	{false, 6, 0x56, 0x56, "Broadwell"},
	{false, 6, 0x4e, 0x4e, "Skylake"},
	{false, 6, 0x5e, 0x5e, "Skylake"},
	/* The stepping tells these three apart. */
	{false, 6, 0x55, 0x55, "Skylake, Cascade Lake or Cooper Lake server"},
	{false, 6, 0x8e, 0x8e, "Kaby Lake"},
	{false, 6, 0x9e, 0x9e, "Kaby Lake"},
	{false, 6, 0xa5, 0xa6, "Comet Lake"},
	{false, 6, 0x6a, 0x6a, "Ice Lake server"},
	{false, 6, 0x6c, 0x6c, "Ice Lake server"},
	{false, 6, 0x7d, 0x7e, "Ice Lake"},
	{false, 6, 0x8c, 0x8d, "Tiger Lake"},
	{false, 6, 0xa7, 0xa7, "Rocket Lake"},
	{false, 6, 0x97, 0x97, "Alder Lake"},
	{false, 6, 0x9a, 0x9a, "Alder Lake"},
	{false, 6, 0xb7, 0xb7, "Raptor Lake"},
	{false, 6, 0xba, 0xba, "Raptor Lake"},
	{false, 6, 0xbf, 0xbf, "Raptor Lake"},
	{false, 6, 0xaa, 0xaa, "Meteor Lake"},
	{false, 6, 0xac, 0xac, "Meteor Lake"},
	{false, 6, 0xc5, 0xc6, "Arrow Lake"},
	{false, 6, 0xbd, 0xbd, "Lunar Lake"},
	{false, 6, 0x8f, 0x8f, "Sapphire Rapids"},
	{false, 6, 0xcf, 0xcf, "Emerald Rapids"},
	{false, 6, 0xad, 0xae, "Granite Rapids"},
};

struct fields {
	char vendor[32], name[96];
	long family, model; /* -1: not given */
};

/* The part of a line after "name : ", or NULL when the line is another field's. */
static const char *value_of(const char *line, const char *name)
{
	size_t n = strlen(name);

	if (strncmp(line, name, n) != 0)
		return NULL;
	line += n + strspn(line + n, " \t");
	return *line == ':' ? line + 1 + strspn(line + 1, " \t") : NULL;
}

/* Reads the fields of the first processor: an empty line ends it. */
static void read_fields(FILE *file, struct fields *out)
{
	char line[4096]; /* the line of flags is long */
	const char *value;

	while (fgets(line, sizeof(line), file) && line[0] != '\n') {
		line[strcspn(line, "\n")] = '\0';
		if ((value = value_of(line, "vendor_id")) != NULL)
			snprintf(out->vendor, sizeof(out->vendor), "%s", value);
		else if ((value = value_of(line, "model name")) != NULL)
			snprintf(out->name, sizeof(out->name), "%s", value);
		else if ((value = value_of(line, "cpu family")) != NULL)
			out->family = strtol(value, NULL, 10);
		else if ((value = value_of(line, "model")) != NULL)
			out->model = strtol(value, NULL, 10);
	}
}

static const char *microarchitecture_of(const struct fields *f)
{
	bool amd = strcmp(f->vendor, "AuthenticAMD") == 0;
	size_t n = sizeof(microarchitectures) / sizeof(microarchitectures[0]);

	for (size_t i = 0; i < n && (amd || strcmp(f->vendor, "GenuineIntel") == 0); i++) {
		const struct microarchitecture *m = &microarchitectures[i];

		if (m->amd == amd && m->family == f->family && m->first <= f->model &&
			f->model <= m->last)
			return m->name;
	}
	return NULL;
}

void cpu_name_read(const char *cpuinfo, char out[static CPU_NAME_BYTES])
{
	struct fields f = {.name = "unknown CPU", .family = -1, .model = -1};
	FILE *file = fopen(cpuinfo, "re");

	if (file) {
		read_fields(file, &f);
		fclose(file);
	}
	const char *known = microarchitecture_of(&f);
	if (f.family < 0 || f.model < 0)
		snprintf(out, CPU_NAME_BYTES, "%s", f.name);
	else
		snprintf(out, CPU_NAME_BYTES, "%.90s (%s%sfamily %ld model %ld)", f.name,
			known ? known : "", known ? ", " : "", f.family, f.model);
}

void cpu_name(char out[static CPU_NAME_BYTES])
{
	cpu_name_read("/proc/cpuinfo", out);
}
