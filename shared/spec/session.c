#include "shared/spec/session.h"

#include "shared/base/checksum.h"
#include "shared/base/error.h"
#include "shared/base/round.h"

#include <stddef.h>
#include <string.h>

const char *const draft_method_names[] = {"auto", "none", "ngram", "model", "replay", "eagle3",
	"mtp", "mtp-lora", "layer-skip", NULL};
static_assert(sizeof(draft_method_names) / sizeof(draft_method_names[0]) == DRAFT_METHODS + 1,
	"every method is named");

/* Pages begin on page boundaries of memory: an unused one costs no memory. */
#define SESSION_ALIGN 4096u

size_t session_page_bytes(uint32_t n_context)
{
	return round_up(sizeof(struct session_page) + 2 * (size_t)n_context * sizeof(int32_t),
		SESSION_ALIGN);
}

static size_t header_bytes(void)
{
	return round_up(sizeof(struct sessions_header), CACHE_LINE);
}

size_t sessions_bytes(uint32_t n_sessions, uint32_t n_context)
{
	return header_bytes() + n_sessions * session_page_bytes(n_context);
}

int sessions_check(const struct sessions_header *header, size_t bytes, struct error *err)
{
	if (bytes < header_bytes())
		return error_set(err, EBADMSG,
			"session region: %zu bytes are too few for its header", bytes);
	uint32_t n = header->n_sessions, context = header->n_context;
	if (n == 0 || n > LIMIT_SESSIONS || context == 0 || context > LIMIT_CONTEXT)
		return error_set(err, EBADMSG,
			"session region: %u sessions of %u tokens are out of range", n, context);
	if (header->page_bytes != session_page_bytes(context) || sessions_bytes(n, context) > bytes)
		return error_set(err, EBADMSG,
			"session region: %u pages of %llu bytes do not fit %zu bytes", n,
			(unsigned long long)header->page_bytes, bytes);
	if (memchr(header->model_path, '\0', sizeof(header->model_path)) == NULL)
		return error_set(err, EBADMSG, "session region: the model path has no end");
	return 0;
}

uint64_t sessions_sum(const struct sessions_header *header)
{
	return checksum(SESSIONS_LAYOUT, header, offsetof(struct sessions_header, sums));
}

struct session_page *session_at(const struct sessions_header *header, void *payload, uint32_t i)
{
	return (struct session_page *)((char *)payload + header_bytes() + i * header->page_bytes);
}

int32_t *session_replay(const struct sessions_header *header, struct session_page *page)
{
	return page->tokens + header->n_context;
}
