#include "client/cli/doctor/finding.h"

#include "shared/base/error.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

struct finding *finding_add(struct findings *findings, const char *name, enum finding_level level,
	const char *format, ...)
{
	struct finding *finding = &findings->all[findings->n];
	va_list args;

	assert(findings->n < FINDINGS_MAX); /* each place that finds something finds one thing */
	findings->n++;
	*finding = (struct finding){.name = name, .level = level};
	va_start(args, format);
	vsnprintf(finding->text, sizeof(finding->text), format, args);
	va_end(args);
	error_tame(finding->text);
	return finding;
}

void finding_todo(struct finding *finding, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(finding->todo, sizeof(finding->todo), format, args);
	va_end(args);
	error_tame(finding->todo);
}

const char *finding_level_name(enum finding_level level)
{
	static const char *const names[] = {"ok", "advice", "problem"};

	return names[level];
}

size_t findings_count(const struct findings *findings, enum finding_level level)
{
	size_t n = 0;

	for (size_t i = 0; i < findings->n; i++)
		n += findings->all[i].level == level;
	return n;
}
