#include "client/cli/vocabulary.h"

#include "shared/model/model.h"
#include "shared/model/tokenizer.h"

#include <stdbool.h>

static bool fingerprint_of(const char *path, uint64_t *fingerprint, uint32_t *n_vocab)
{
	struct model *model = NULL;
	struct tokenizer *tokenizer = NULL;
	bool known = model_load(path, &model, NULL) == 0 &&
		     tokenizer_load(model->gguf, &tokenizer, NULL) == 0;
	if (known) {
		*fingerprint = tokenizer_fingerprint(tokenizer);
		*n_vocab = tokenizer_n_vocab(tokenizer);
		tokenizer_free(&tokenizer);
	}
	if (model)
		model_free(&model);
	return known;
}

int vocabulary_check(const char *model, const char *draft, struct error *err)
{
	uint64_t of_model, of_draft;
	uint32_t n_model, n_draft;
	if (!fingerprint_of(model, &of_model, &n_model) ||
		!fingerprint_of(draft, &of_draft, &n_draft) || of_model == of_draft)
		return 0;
	return error_set(err, EINVAL,
		"the draft model %s (%u tokens) has another tokenizer than the model %s (%u "
		"tokens)",
		draft, n_draft, model, n_model);
}
