#include "shared/model/arch/pack.h"

#include "shared/base/round.h"

#include <string.h>

bool pack_is(const struct gguf *gguf)
{
	struct gguf_string name;
	return gguf_get_string(gguf, "general.architecture", &name, NULL) == 0 &&
	       name.bytes == sizeof(PACK_ARCHITECTURE) - 1 &&
	       memcmp(name.data, PACK_ARCHITECTURE, name.bytes) == 0;
}

int pack_architecture(const struct gguf *gguf, struct gguf_string *out, struct error *err)
{
	return gguf_get_string(
		gguf, pack_is(gguf) ? PACK_KEY_ARCHITECTURE : "general.architecture", out, err);
}

static int missing(const char *key, struct error *err)
{
	return error_set(err, EINVAL, "key %s is missing, which a packed model has", key);
}

int pack_check(const struct gguf *gguf, uint32_t n_layers, struct error *err)
{
	uint64_t version, fingerprint, n;
	enum gguf_value_type type;
	int rc = gguf_get_u64(gguf, PACK_KEY_VERSION, 0, UINT32_MAX, &version, err);
	if (rc)
		return rc == -ENOENT ? missing(PACK_KEY_VERSION, err) : rc;
	if (version != PACK_VERSION)
		return error_set(err, ENOTSUP,
			"key " PACK_KEY_VERSION " is %llu; packed models of version %d are known: "
			"pack the original again",
			(unsigned long long)version, PACK_VERSION);
	rc = gguf_get_u64(gguf, PACK_KEY_FINGERPRINT, 0, UINT64_MAX, &fingerprint, err);
	if (rc)
		return rc == -ENOENT ? missing(PACK_KEY_FINGERPRINT, err) : rc;
	rc = gguf_get_array(gguf, PACK_KEY_TYPES, &type, &n, err);
	if (rc)
		return rc == -ENOENT ? missing(PACK_KEY_TYPES, err) : rc;
	if (type != GGUF_U32 || n != (uint64_t)n_layers * PACK_PARTS)
		return error_set(err, EINVAL,
			"key " PACK_KEY_TYPES
			" has %llu elements; it must have u32, %d for each of "
			"%u layers",
			(unsigned long long)n, PACK_PARTS, n_layers);
	return 0;
}

uint64_t pack_fingerprint(const struct gguf *gguf)
{
	uint64_t fingerprint = 0;
	(void)gguf_get_u64(gguf, PACK_KEY_FINGERPRINT, 0, UINT64_MAX, &fingerprint, NULL);
	return fingerprint;
}

uint32_t pack_type(const struct gguf *gguf, uint32_t layer, int part)
{
	return (uint32_t)gguf_array_i64(
		gguf, PACK_KEY_TYPES, (uint64_t)layer * PACK_PARTS + (uint64_t)part);
}

struct pack_layout pack_layout_of(const struct matrix parts[static PACK_PARTS])
{
	struct pack_layout layout = {0};
	for (int p = 0; p < PACK_PARTS; p++) {
		layout.at[p] = round_up(layout.stride, PACK_ALIGNMENT);
		layout.bytes[p] = (uint64_t)parts[p].rows * parts[p].row_bytes;
		layout.stride = layout.at[p] + layout.bytes[p];
	}
	layout.stride = round_up(layout.stride, PACK_PAGE);
	return layout;
}
