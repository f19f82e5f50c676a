/* A trace as a file. */
#include "bench/src/cache_trace.h"

#include "shared/base/new_file.h"
#include "shared/spec/slots.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "ORTRACE"
enum { VERSION = 1, HASH_BYTES = 8, TRACE_BYTES_MAX = 1 << 30 };

static uint64_t hash_of(const unsigned char *data, size_t bytes)
{
	uint64_t h = 0xcbf29ce484222325u;
	for (size_t i = 0; i < bytes; i++)
		h = (h ^ data[i]) * 0x100000001b3u;
	return h;
}

/* ---- Writing, into memory. ---- */

struct writer {
	unsigned char *data;
	size_t n, max;
	bool failed;
};

static void put_bytes(struct writer *w, const void *data, size_t bytes)
{
	if (w->failed)
		return;
	if (bytes > w->max - w->n) {
		size_t more = 2 * w->max + bytes + 4096;
		unsigned char *grown = realloc(w->data, more);
		if (grown == NULL) {
			w->failed = true;
			return;
		}
		w->data = grown;
		w->max = more;
	}
	memcpy(w->data + w->n, data, bytes);
	w->n += bytes;
}

/* The lowest byte first, whatever the machine's order. */
static void put_fixed(struct writer *w, uint64_t value, unsigned bytes)
{
	unsigned char out[8];
	for (unsigned i = 0; i < bytes; i++)
		out[i] = (unsigned char)(value >> (8 * i));
	put_bytes(w, out, bytes);
}

static void put(struct writer *w, uint64_t value)
{
	unsigned char out[10];
	size_t n = 0;
	for (; value >= 0x80; value >>= 7)
		out[n++] = (unsigned char)(value | 0x80);
	out[n++] = (unsigned char)value;
	put_bytes(w, out, n);
}

static void put_hints(struct writer *w, const struct cache_trace *trace, uint32_t first, uint32_t n)
{
	put(w, n);
	for (uint32_t i = 0; i < n; i++) {
		const struct trace_hint *hint = &trace->hints[first + i];
		uint32_t score;
		memcpy(&score, &hint->score, sizeof(score));
		put(w, hint->source);
		put(w, hint->layer);
		put(w, hint->expert);
		put_fixed(w, score, 4);
		put(w, hint->at_ns);
	}
}

static void put_layer(
	struct writer *w, const struct cache_trace *trace, const struct trace_layer *layer)
{
	uint32_t before = 0;
	put(w, layer->layer);
	put(w, layer->before_ns);
	put(w, layer->after_ns);
	put(w, layer->n_uses);
	for (uint32_t i = 0; i < layer->n_uses; i++) {
		struct trace_use use = trace->uses[layer->first_use + i];
		put(w, use.expert - before);
		put(w, use.tokens);
		before = use.expert;
	}
	put_hints(w, trace, layer->first_hint, layer->n_hints);
}

static void put_pass(
	struct writer *w, const struct cache_trace *trace, const struct trace_pass *pass)
{
	put(w, 1);
	put(w, pass->session);
	put(w, pass->tokens);
	put(w, pass->drafted);
	put(w, pass->emitted);
	put(w, pass->prefill);
	put(w, pass->draft_ns);
	put_hints(w, trace, pass->first_hint, pass->n_hints);
	put(w, pass->n_layers);
	for (uint32_t i = 0; i < pass->n_layers; i++)
		put_layer(w, trace, &trace->layers[pass->first_layer + i]);
}

static void put_trace(struct writer *w, const struct cache_trace *trace)
{
	size_t name = strlen(trace->name);
	put_bytes(w, MAGIC, sizeof(MAGIC));
	put_fixed(w, VERSION, 4);
	put_fixed(w, trace->n_layers, 4);
	put_fixed(w, trace->n_experts, 4);
	put_fixed(w, trace->n_experts_used, 4);
	put_fixed(w, trace->k, 4);
	put_fixed(w, trace->expert_bytes, 8);
	put_fixed(w, name, 4);
	put_bytes(w, trace->name, name);
	for (uint32_t l = 0; l < trace->n_layers; l++)
		put_fixed(w, trace->moe[l], 1);
	for (uint32_t i = 0; i < trace->n_passes; i++)
		put_pass(w, trace, &trace->passes[i]);
	put(w, 0);
	if (!w->failed)
		put_fixed(w, hash_of(w->data, w->n), HASH_BYTES);
}

int cache_trace_write(const struct cache_trace *trace, const char *path, struct error *err)
{
	struct writer w = {0};
	put_trace(&w, trace);
	if (w.failed) {
		free(w.data);
		return error_set(err, ENOMEM, "%s: no memory for the trace", path);
	}
	struct new_file out;
	int rc = new_file_open(&out, path, true, w.n, err);
	if (rc == 0 && fwrite(w.data, 1, w.n, out.file) != w.n)
		rc = error_set(err, EIO, "%s: it could not be written", path);
	free(w.data);
	return new_file_close(&out, rc, err);
}

/* ---- Reading. ---- */

struct reader {
	const unsigned char *data;
	size_t n, at;
	bool failed; /* it ended too early, or an integer is too long */
	struct error *err;
};

static const unsigned char *take(struct reader *r, size_t bytes)
{
	if (r->failed || bytes > r->n - r->at) {
		r->failed = true;
		return NULL;
	}
	r->at += bytes;
	return r->data + r->at - bytes;
}

static uint64_t get_fixed(struct reader *r, unsigned bytes)
{
	const unsigned char *from = take(r, bytes);
	uint64_t value = 0;
	for (unsigned i = 0; from != NULL && i < bytes; i++)
		value |= (uint64_t)from[i] << (8 * i);
	return value;
}

static uint64_t get(struct reader *r)
{
	uint64_t value = 0;
	for (unsigned shift = 0; shift < 63; shift += 7) {
		const unsigned char *from = take(r, 1);
		if (from == NULL)
			return 0;
		value |= (uint64_t)(*from & 0x7f) << shift;
		if (*from < 0x80)
			return value;
	}
	r->failed = true;
	return 0;
}

static int refuse(const struct reader *r, const char *what, uint64_t value, uint64_t most)
{
	return error_set(r->err, EBADMSG, "byte %zu: %s is %llu, allowed is up to %llu", r->at,
		what, (unsigned long long)value, (unsigned long long)most);
}

static int cut_short(const struct reader *r)
{
	return error_set(r->err, EBADMSG, "it is truncated or damaged at byte %zu", r->at);
}

/* A value up to `most`. */
static int get_up_to(struct reader *r, const char *what, uint64_t most, uint64_t *out)
{
	*out = get(r);
	if (r->failed)
		return cut_short(r);
	return *out <= most ? 0 : refuse(r, what, *out, most);
}

static int get_u32(struct reader *r, const char *what, uint32_t most, uint32_t *out)
{
	uint64_t value;
	int rc = get_up_to(r, what, most, &value);
	*out = (uint32_t)value;
	return rc;
}

static int no_memory(const struct reader *r, int rc)
{
	return rc == 0 ? 0 : error_set(r->err, ENOMEM, "no memory for the trace");
}

static int get_layer_number(struct reader *r, const struct cache_trace *trace, uint32_t *out)
{
	int rc = get_u32(r, "a layer", trace->n_layers - 1, out);
	if (rc == 0 && !trace->moe[*out])
		return error_set(r->err, EBADMSG, "byte %zu: layer %u has no experts", r->at, *out);
	return rc;
}

static int get_hints(struct reader *r, struct cache_trace *trace)
{
	uint32_t n;
	int rc = get_u32(r, "the number of hints", UINT32_MAX, &n);
	for (uint32_t i = 0; rc == 0 && i < n; i++) {
		struct trace_hint hint = {0};
		uint32_t layer = 0, expert = 0;
		rc = get_u32(r, "a source", HINT_SOURCES - 1, &hint.source);
		if (rc == 0)
			rc = get_layer_number(r, trace, &layer);
		if (rc == 0)
			rc = get_u32(r, "an expert", trace->n_experts - 1, &expert);
		uint32_t score = (uint32_t)get_fixed(r, 4);
		memcpy(&hint.score, &score, sizeof(score));
		if (rc == 0)
			rc = get_u32(r, "a time", UINT32_MAX, &hint.at_ns);
		if (rc == 0 && !isfinite(hint.score))
			rc = error_set(r->err, EBADMSG, "byte %zu: a score is not a number", r->at);
		hint.layer = (uint16_t)layer;
		hint.expert = (uint16_t)expert;
		if (rc == 0)
			rc = no_memory(r, cache_trace_add_hint(trace, &hint));
	}
	return rc;
}

static int get_uses(struct reader *r, struct cache_trace *trace)
{
	uint32_t n, expert = 0;
	int rc = get_u32(r, "the number of uses", trace->n_experts, &n);
	for (uint32_t i = 0; rc == 0 && i < n; i++) {
		uint32_t step, tokens = 0;
		rc = get_u32(r, "an expert", trace->n_experts - 1 - expert, &step);
		if (rc == 0)
			rc = get_u32(r, "a number of tokens", LIMIT_BATCH, &tokens);
		if (rc == 0 && ((i > 0 && step == 0) || tokens == 0))
			rc = error_set(r->err, EBADMSG,
				"byte %zu: an expert comes twice, or for no token", r->at);
		expert += step;
		struct trace_use use = {(uint16_t)expert, (uint16_t)tokens};
		if (rc == 0)
			rc = no_memory(r, cache_trace_add_use(trace, use));
	}
	return rc;
}

static int get_layers(struct reader *r, struct cache_trace *trace)
{
	uint32_t n, last = 0;
	int rc = get_u32(r, "the number of layers", trace->n_layers, &n);
	for (uint32_t i = 0; rc == 0 && i < n; i++) {
		struct trace_layer layer = {0};
		rc = get_layer_number(r, trace, &layer.layer);
		if (rc == 0 && i > 0 && layer.layer <= last)
			rc = error_set(r->err, EBADMSG, "byte %zu: layer %u comes after layer %u",
				r->at, layer.layer, last);
		last = layer.layer;
		if (rc == 0)
			rc = get_u32(r, "a time", UINT32_MAX, &layer.before_ns);
		if (rc == 0)
			rc = get_u32(r, "a time", UINT32_MAX, &layer.after_ns);
		if (rc == 0)
			rc = no_memory(r, cache_trace_add_layer(trace, &layer));
		if (rc == 0)
			rc = get_uses(r, trace);
		if (rc == 0)
			rc = get_hints(r, trace);
	}
	return rc;
}

static int get_pass(struct reader *r, struct cache_trace *trace)
{
	struct trace_pass pass = {0};
	uint32_t prefill = 0;
	int rc = get_up_to(r, "a session", UINT64_MAX, &pass.session);
	if (rc == 0)
		rc = get_u32(r, "the tokens of a pass", LIMIT_BATCH, &pass.tokens);
	if (rc == 0)
		rc = get_u32(r, "drafted tokens", pass.tokens, &pass.drafted);
	if (rc == 0)
		rc = get_u32(r, "emitted tokens", pass.tokens, &pass.emitted);
	if (rc == 0)
		rc = get_u32(r, "prefill", 1, &prefill);
	if (rc == 0)
		rc = get_up_to(r, "a time", UINT64_MAX >> 20, &pass.draft_ns);
	pass.prefill = prefill;
	if (rc == 0)
		rc = no_memory(r, cache_trace_add_pass(trace, &pass));
	if (rc == 0)
		rc = get_hints(r, trace);
	return rc == 0 ? get_layers(r, trace) : rc;
}

static int get_head(struct reader *r, struct cache_trace *trace)
{
	const unsigned char *magic = take(r, sizeof(MAGIC));
	if (magic == NULL || memcmp(magic, MAGIC, sizeof(MAGIC)) != 0)
		return error_set(r->err, EBADMSG, "it is not a routing trace");
	uint32_t version = (uint32_t)get_fixed(r, 4);
	if (version != VERSION)
		return error_set(r->err, EBADMSG, "it has version %u, this program reads %d",
			version, VERSION);
	trace->n_layers = (uint32_t)get_fixed(r, 4);
	trace->n_experts = (uint32_t)get_fixed(r, 4);
	trace->n_experts_used = (uint32_t)get_fixed(r, 4);
	trace->k = (uint32_t)get_fixed(r, 4);
	trace->expert_bytes = get_fixed(r, 8);
	uint32_t name = (uint32_t)get_fixed(r, 4);
	if (r->failed)
		return cut_short(r);
	if (trace->n_layers == 0 || trace->n_layers > LIMIT_LAYERS || trace->n_experts == 0 ||
		trace->n_experts > LIMIT_EXPERTS || trace->n_experts_used == 0 ||
		trace->n_experts_used > trace->n_experts || trace->k > LIMIT_DRAFT_DEPTH ||
		trace->expert_bytes == 0 || trace->expert_bytes > UINT32_MAX)
		return error_set(r->err, EBADMSG,
			"%u layers, %u of %u experts of %llu bytes, %u drafts: beyond the limits",
			trace->n_layers, trace->n_experts_used, trace->n_experts,
			(unsigned long long)trace->expert_bytes, trace->k);
	if (name >= TRACE_NAME)
		return refuse(r, "the name's length", name, TRACE_NAME - 1);
	const unsigned char *text = take(r, name);
	const unsigned char *moe = take(r, trace->n_layers);
	if (text == NULL || moe == NULL)
		return cut_short(r);
	memcpy(trace->name, text, name);
	error_tame(trace->name);
	for (uint32_t l = 0; l < trace->n_layers; l++)
		trace->moe[l] = moe[l] == 1;
	return 0;
}

int cache_trace_parse(
	const unsigned char *data, size_t bytes, struct cache_trace *out, struct error *err)
{
	struct reader r = {.data = data, .n = bytes, .err = err};
	cache_trace_init(out);
	int rc = get_head(&r, out);
	uint64_t more = 1;
	while (rc == 0 && (rc = get_up_to(&r, "a pass's mark", 1, &more)) == 0 && more == 1)
		rc = get_pass(&r, out);
	if (rc == 0) {
		uint64_t hash = hash_of(data, r.at);
		if (get_fixed(&r, HASH_BYTES) != hash || r.failed || r.at != bytes)
			rc = error_set(err, EBADMSG, "its checksum is wrong");
	}
	if (rc != 0)
		cache_trace_exit(out);
	return rc;
}

static int read_all(const char *path, unsigned char **out, size_t *bytes, struct error *err)
{
	FILE *file = fopen(path, "re");
	if (file == NULL)
		return error_set(err, errno, "%s: %s", path, strerror(errno));
	struct writer w = {0};
	unsigned char buffer[65536];
	size_t n;
	while ((n = fread(buffer, 1, sizeof(buffer), file)) > 0 && w.n <= TRACE_BYTES_MAX)
		put_bytes(&w, buffer, n);
	int rc = ferror(file) ? error_set(err, EIO, "%s: it could not be read", path) : 0;
	fclose(file);
	if (rc == 0 && w.n > TRACE_BYTES_MAX)
		rc = error_set(err, EFBIG, "%s: it is larger than %d bytes", path, TRACE_BYTES_MAX);
	if (rc == 0 && w.failed)
		rc = error_set(err, ENOMEM, "%s: no memory for it", path);
	if (rc != 0) {
		free(w.data);
		return rc;
	}
	*out = w.data;
	*bytes = w.n;
	return 0;
}

int cache_trace_read(const char *path, struct cache_trace *out, struct error *err)
{
	unsigned char *data = NULL;
	size_t bytes = 0;
	int rc = read_all(path, &data, &bytes, err);
	if (rc < 0)
		return rc;
	rc = cache_trace_parse(data, bytes, out, err);
	free(data);
	return rc < 0 ? error_prefix(err, rc, "%s", path) : 0;
}
