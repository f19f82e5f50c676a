/*
 * Why a request is refused: the HTTP status and OpenAI's error object
 * (platform.openai.com/docs/guides/error-codes):
 *   {"error": {"message": ..., "type": ..., "param": ... or null, "code": ... or null}}
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

struct fault {
	unsigned status; /* 0: there is none */
	char param[64]; /* the field that is wrong; "": none */
	const char *code; /* for programs; NULL: none */
	char message[512]; /* UTF-8 */
};

/* Returns false, for `return fault_set(...)`. param: NULL or "" for none. */
bool fault_set(struct fault *fault, unsigned status, const char *param, const char *code,
	const char *format, ...) __attribute__((format(printf, 5, 6)));
/* Sets the fault for an errno of the service; sentence: the SDK's. */
void fault_of_service(struct fault *fault, int code, const char *sentence);
/* The error object; a new reference, or NULL when memory is exhausted. */
json_t *fault_json(const struct fault *fault);
