/* outrider-model: the engine without the services. `generate` here is what every served answer must equal. */
#include "client/model/commands.h"
#include "client/model/file_commands.h"

#include "shared/base/standard.h"
#include "shared/model/gguf/gguf_guard.h"

#include <stdio.h>
#include <string.h>
#include <sysexits.h>

static const struct command {
	const char *name, *help;
	int (*fn)(int argc, char **argv);
} commands[] = {
	{"info", "metadata and tensors of a GGUF file", command_info},
	{"check", "every problem of a GGUF file, including its weights", command_check},
	{"tokenize", "convert text to token ids and back", command_tokenize},
	{"render", "format a conversation by the model's chat template", command_render},
	{"logits", "logits after the last token of a prompt, or after every one", command_logits},
	{"generate", "continue a prompt, one token at a time", command_generate},
	{"routes", "the experts chosen for each layer and token of a prompt", command_routes},
	{"perplexity", "how well a model predicts a text", command_perplexity},
	{"pack", "copy a model so that each of its experts is one read", command_pack},
	{"synth", "write a model with the shape of a published one and random weights",
		command_synth},
	{NULL, NULL, NULL},
};

static void usage(FILE *to)
{
	fprintf(to, "usage: outrider-model COMMAND [OPTIONS]\n\n");
	for (const struct command *c = commands; c->name; c++)
		fprintf(to, "  %-11s %s\n", c->name, c->help);
	fprintf(to, "\noutrider-model COMMAND --help lists the options of a command.\n"
		    "--version prints the version.\n");
}

static int dispatch(int argc, char **argv)
{
	if (argc < 2) {
		usage(stderr);
		return EX_USAGE;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
		strcmp(argv[1], "help") == 0) {
		usage(stdout);
		return EX_OK;
	}
	if (strcmp(argv[1], "--version") == 0) {
		puts("outrider-model " OUTRIDER_VERSION);
		return EX_OK;
	}
	gguf_guard_start("outrider-model: ");
	for (const struct command *c = commands; c->name; c++)
		if (strcmp(c->name, argv[1]) == 0)
			return c->fn(argc - 1, argv + 1);
	fprintf(stderr, "outrider-model: unknown command \"%s\"\n", argv[1]);
	usage(stderr);
	return EX_USAGE;
}

int main(int argc, char **argv)
{
	standard_begin();
	return standard_end("outrider-model", dispatch(argc, argv));
}
