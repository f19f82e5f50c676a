/* The findings of `outrider doctor`, in the order in which they were made; owned by the command. */
#pragma once

#include <stddef.h>

enum finding_level {
	FINDING_OK,
	FINDING_ADVICE, /* it works, and would work better otherwise */
	FINDING_PROBLEM, /* the service does not start, or does not do what it should */
};

struct finding {
	const char *name; /* of the check; the same in every run */
	enum finding_level level;
	char text[512]; /* what was found */
	char todo[512]; /* what to do about it; "": nothing */
};

enum { FINDINGS_MAX = 40 };

struct findings {
	size_t n;
	struct finding all[FINDINGS_MAX];
};

/* Adds a finding, and returns it for finding_todo. */
struct finding *finding_add(struct findings *findings, const char *name, enum finding_level level,
	const char *format, ...) __attribute__((format(printf, 4, 5)));
void finding_todo(struct finding *finding, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* "ok", "advice", "problem". */
const char *finding_level_name(enum finding_level level);
size_t findings_count(const struct findings *findings, enum finding_level level);
