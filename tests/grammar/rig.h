/* Grammars in tests: compile, and ask whether a text matches. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/model/grammar/matcher.h"

struct rig {
	struct grammar *grammar;
	struct matcher *matcher;
};

static inline int rig_try(
	struct rig *rig, enum grammar_kind kind, const char *source, struct error *err)
{
	*rig = (struct rig){0};
	int rc = grammar_compile(kind, source, strlen(source), &rig->grammar, err);
	if (rc == 0)
		assert_int_equal(
			matcher_create(rig->grammar, MATCHER_BYTES_DEFAULT, &rig->matcher), 0);
	return rc;
}

static inline void rig_open(struct rig *rig, enum grammar_kind kind, const char *source)
{
	struct error err = {""};

	if (rig_try(rig, kind, source, &err) != 0)
		fail_msg("%s: %s", source, err.text);
}

static inline void rig_close(struct rig *rig)
{
	matcher_free(&rig->matcher);
	grammar_free(&rig->grammar);
}

static inline bool rig_matches_bytes(struct rig *rig, const char *text, size_t bytes)
{
	uint32_t state = matcher_text(rig->matcher, matcher_start(rig->matcher), text, bytes);

	assert_int_not_equal(state, MATCHER_FULL);
	return matcher_can_end(rig->matcher, state);
}

static inline bool rig_matches(struct rig *rig, const char *text)
{
	return rig_matches_bytes(rig, text, strlen(text));
}
