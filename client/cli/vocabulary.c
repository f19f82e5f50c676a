#include "client/cli/vocabulary.h"

#include "shared/model/gguf/gguf.h"
#include "shared/model/text/tokenizer.h"

#include <stdio.h>

/* NULL when the file or its tokenizer cannot be read. */
static struct tokenizer *load(const char *path)
{
	struct gguf *gguf;
	struct tokenizer *tokenizer = NULL;
	if (gguf_open(path, &gguf, NULL))
		return NULL;
	(void)tokenizer_load(gguf, &tokenizer, NULL);
	gguf_close(&gguf);
	return tokenizer;
}

static int compare(const char *model, const struct tokenizer *of_model, const char *draft,
	const struct tokenizer *of_draft, struct error *err)
{
	uint32_t n_model = tokenizer_n_vocab(of_model), n_draft = tokenizer_n_vocab(of_draft);
	uint32_t shared;
	struct error difference;
	if (tokenizer_compare(of_model, of_draft, &shared, &difference))
		return error_set(err, EINVAL,
			"the draft model %.100s (%u tokens) has another tokenizer than the model "
			"%.100s (%u tokens): %s",
			draft, n_draft, model, n_model, difference.text);
	if (n_model != n_draft)
		fprintf(stderr,
			"outrider: up: the draft model has %u tokens and the model %u; the first "
			"%u are equal, and only these are drafted\n",
			n_draft, n_model, shared);
	return 0;
}

int vocabulary_check(const char *model, const char *draft, struct error *err)
{
	struct tokenizer *of_model = load(model), *of_draft = load(draft);
	int rc = of_model && of_draft ? compare(model, of_model, draft, of_draft, err) : 0;
	tokenizer_free(&of_model);
	tokenizer_free(&of_draft);
	return rc;
}
