/* outrider-model check: check.c runs the checks and prints; check_vocabulary.c checks the
 * tokenizer's keys. */
#pragma once

#include "shared/model/gguf/gguf.h"

struct check;

/* Reports a problem in one sentence that names the key or tensor; printed at once. */
void check_problem(void *check, const char *message);
void check_problem_format(struct check *check, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Reports something noteworthy that is no fault; printed at the end. */
void check_note(struct check *check, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t check_n_problems(const struct check *check);

void check_vocabulary(struct check *check, const struct gguf *gguf);
void check_template(struct check *check, const struct gguf *gguf);
