/* outrider-model check: check.c runs it and prints; check_vocabulary.c knows what the tokenizer's keys must be. */
#pragma once

#include "shared/model/gguf/gguf.h"

struct check;

/* One sentence that names the key or tensor; printed as it comes. */
void check_problem(void *check, const char *message);
void check_problem_format(struct check *check, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* What is worth knowing and no fault; printed at the end. */
void check_note(struct check *check, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t check_n_problems(const struct check *check);

void check_vocabulary(struct check *check, const struct gguf *gguf);
void check_template(struct check *check, const struct gguf *gguf);
