/* What clients ask about texts and the model: the tokens of a text, the text of tokens, a
 * conversation as the model sees it. Questions are not trusted. Any thread. */
#pragma once

#include "services/verifier/front/request.h"

/* *out belongs to the caller (outrider__text__free_unpacked). -EINVAL and -E2BIG with what, where
 * and the allowed range. */
int question_answer(const Outrider__TextRequest *question, const struct request_limits *limits,
	Outrider__Text **out, struct error *err);
