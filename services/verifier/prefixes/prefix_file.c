#include "services/verifier/prefixes/prefix_file.h"

#include "shared/base/checksum.h"

#include <endian.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

static const char magic[8] = "OUTRDKVP";
enum {
	AT_VERSION = 8,
	AT_MODEL = 16,
	AT_STAMPS = 24,
	AT_ARITHMETIC = 32,
	AT_SHAPE = 40, /* five of 32 bits */
	AT_ID = 64,
	AT_BEFORE = 72,
	AT_DOMAIN = 80,
	AT_TOKENS = 88,
	AT_ORDER = AT_TOKENS + 4 * PREFIX_TOKENS,
	AT_CONTENT_BYTES = AT_ORDER + PREFIX_TOKENS,
	AT_CONTENT_SUM = AT_CONTENT_BYTES + 8,
	AT_KIND = AT_CONTENT_SUM + 8,
	AT_STATES = AT_KIND + 4,
	AT_STATE_BYTES = AT_STATES + 4,
	AT_END = AT_STATE_BYTES + 8, /* zeros from here to the sum */
	AT_SUM = PREFIX_HEADER_BYTES - 8,
};
_Static_assert(AT_END <= AT_SUM, "the header has room for its sum");

const int32_t prefix_state_tokens[PREFIX_TOKENS] = {[0 ... PREFIX_TOKENS - 1] = -1};

static void put32(unsigned char *at, uint32_t value)
{
	value = htole32(value);
	memcpy(at, &value, sizeof(value));
}

static void put64(unsigned char *at, uint64_t value)
{
	value = htole64(value);
	memcpy(at, &value, sizeof(value));
}

static uint32_t get32(const unsigned char *at)
{
	uint32_t value;
	memcpy(&value, at, sizeof(value));
	return le32toh(value);
}

static uint64_t get64(const unsigned char *at)
{
	uint64_t value;
	memcpy(&value, at, sizeof(value));
	return le64toh(value);
}

void prefix_header_write(const struct prefix_header *header, unsigned char *out)
{
	const struct prefix_shape *s = &header->shape;
	const uint32_t shape[] = {s->kv_type, s->n_layers, s->n_kv_heads, s->k_dim, s->v_dim};

	memset(out, 0, PREFIX_HEADER_BYTES);
	memcpy(out, magic, sizeof(magic));
	put32(out + AT_VERSION, PREFIX_VERSION);
	put64(out + AT_MODEL, s->model);
	put64(out + AT_STAMPS, s->stamps);
	put64(out + AT_ARITHMETIC, s->arithmetic);
	for (int i = 0; i < 5; i++)
		put32(out + AT_SHAPE + 4 * i, shape[i]);
	put64(out + AT_ID, header->id);
	put64(out + AT_BEFORE, header->before);
	put64(out + AT_DOMAIN, header->domain);
	for (int i = 0; i < PREFIX_TOKENS; i++)
		put32(out + AT_TOKENS + 4 * i, (uint32_t)header->tokens[i]);
	memcpy(out + AT_ORDER, header->order, PREFIX_TOKENS);
	put64(out + AT_CONTENT_BYTES, header->content_bytes);
	put64(out + AT_CONTENT_SUM, header->content_sum);
	put32(out + AT_KIND, header->kind);
	put32(out + AT_STATES, s->n_states);
	put64(out + AT_STATE_BYTES, s->state_bytes);
	put64(out + AT_SUM, checksum(0, out, AT_SUM));
}

static void read_fields(const unsigned char *in, struct prefix_header *out)
{
	struct prefix_shape *s = &out->shape;
	uint32_t *const shape[] = {&s->kv_type, &s->n_layers, &s->n_kv_heads, &s->k_dim, &s->v_dim};

	memset(out, 0, sizeof(*out));
	s->model = get64(in + AT_MODEL);
	s->stamps = get64(in + AT_STAMPS);
	s->arithmetic = get64(in + AT_ARITHMETIC);
	for (int i = 0; i < 5; i++)
		*shape[i] = get32(in + AT_SHAPE + 4 * i);
	out->id = get64(in + AT_ID);
	out->before = get64(in + AT_BEFORE);
	out->domain = get64(in + AT_DOMAIN);
	for (int i = 0; i < PREFIX_TOKENS; i++)
		out->tokens[i] = (int32_t)get32(in + AT_TOKENS + 4 * i);
	memcpy(out->order, in + AT_ORDER, PREFIX_TOKENS);
	out->content_bytes = get64(in + AT_CONTENT_BYTES);
	out->content_sum = get64(in + AT_CONTENT_SUM);
	out->kind = get32(in + AT_KIND);
	s->n_states = get32(in + AT_STATES);
	s->state_bytes = get64(in + AT_STATE_BYTES);
}

int prefix_header_read(
	const unsigned char *in, uint64_t bytes, struct prefix_header *out, struct error *err)
{
	uint32_t seen = 0;

	if (bytes < PREFIX_HEADER_BYTES)
		return error_set(err, EBADMSG, "it is truncated: it has %llu bytes",
			(unsigned long long)bytes);
	if (memcmp(in, magic, sizeof(magic)) != 0)
		return error_set(err, EBADMSG, "it is no prefix file");
	if (get32(in + AT_VERSION) != PREFIX_VERSION)
		return error_set(err, EBADMSG, "it has version %u, this program reads version %d",
			get32(in + AT_VERSION), PREFIX_VERSION);
	if (get64(in + AT_SUM) != checksum(0, in, AT_SUM))
		return error_set(err, EBADMSG, "the checksum of its header is wrong");
	read_fields(in, out);
	for (int i = 0; i < PREFIX_TOKENS; i++)
		if (out->order[i] < PREFIX_TOKENS)
			seen |= 1u << out->order[i];
	bool is_state = out->kind == PREFIX_STATE;
	if (out->id == 0 || out->before == out->id || seen != UINT32_MAX ||
		out->kind > PREFIX_STATE || (is_state && out->before == 0) ||
		is_state != (memcmp(out->tokens, prefix_state_tokens, sizeof(out->tokens)) == 0))
		return error_set(err, EBADMSG, "its header contradicts itself");
	if (bytes - PREFIX_HEADER_BYTES != out->content_bytes)
		return error_set(err, EBADMSG, "it is truncated, or too long: %llu bytes, not %llu",
			(unsigned long long)bytes,
			PREFIX_HEADER_BYTES + (unsigned long long)out->content_bytes);
	return 0;
}

int prefix_shape_check(
	const struct prefix_shape *of, const struct prefix_shape *want, struct error *err)
{
	if (of->model != want->model)
		return error_set(err, ESTALE,
			"another model computed it (fingerprint %016llx, not %016llx)",
			(unsigned long long)of->model, (unsigned long long)want->model);
	if (of->arithmetic != want->arithmetic)
		return error_set(err, ESTALE, "it was computed with arithmetic %llu, not %llu",
			(unsigned long long)of->arithmetic, (unsigned long long)want->arithmetic);
	if (of->stamps != want->stamps)
		return error_set(err, ESTALE,
			"the model's file was replaced or written to since it was computed");
	if (of->kv_type != want->kv_type || of->n_layers != want->n_layers ||
		of->n_kv_heads != want->n_kv_heads || of->k_dim != want->k_dim ||
		of->v_dim != want->v_dim)
		return error_set(err, ESTALE, "its keys and values have another shape or kv_type");
	if (of->n_states != want->n_states || of->state_bytes != want->state_bytes)
		return error_set(err, ESTALE, "its recurrent states or windows have another shape");
	return 0;
}

int prefix_content_check(const struct prefix_header *header, const void *content, struct error *err)
{
	if (checksum(0, content, header->content_bytes) != header->content_sum)
		return error_set(err, EBADMSG, "the checksum of its %s is wrong",
			header->kind == PREFIX_STATE ? "states or windows" : "keys and values");
	return 0;
}
