/*
 * Continues a text with a running Outrider service and says how fast that was.
 *	cc -o complete complete.c $(pkg-config --cflags --libs outrider) && ./complete "Once upon a time"
 */
#include <outrider.h>

#include <stdio.h>

static int show(void *user, const struct outrider_event *event)
{
	size_t *n_tokens = user;

	fwrite(event->text, 1, event->text_bytes, stdout);
	fflush(stdout);
	*n_tokens += event->n_tokens;
	if (event->type == OUTRIDER_EVENT_DONE)
		fprintf(stderr, "\n%zu tokens, ended by %s\n", *n_tokens,
			outrider_end_name(event->end));
	/* Nonzero would end the answer here. */
	return 0;
}

static int complete(struct outrider *client, const char *prompt)
{
	struct outrider_request *request;
	size_t n_tokens = 0;
	int code = outrider_request_new(&request);

	if (code == 0)
		code = outrider_request_set_prompt(request, prompt);
	if (code == 0) {
		outrider_request_set_max_tokens(request, 32);
		code = outrider_generate(client, request, show, &n_tokens);
	}
	outrider_request_free(&request);
	return code;
}

int main(int argc, char **argv)
{
	struct outrider *client;
	int code = outrider_connect(NULL, &client);

	if (code == 0)
		code = complete(client, argc > 1 ? argv[1] : "Once upon a time");
	if (code < 0)
		fprintf(stderr, "complete: %s\n", outrider_error());
	outrider_close(&client);
	return code < 0;
}
