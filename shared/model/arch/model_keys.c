#include "shared/model/arch/model_config.h"

#include <stdio.h>

const char *key_name(struct keys *k, const char *suffix)
{
	snprintf(k->key, sizeof(k->key), "%s.%s", k->arch->name, suffix);
	return k->key;
}

int missing_key(struct keys *k)
{
	return error_set(k->err, EINVAL, "key %s is missing", k->key);
}

int get_count(struct keys *k, const char *suffix, uint64_t min, uint64_t max, uint32_t *out)
{
	uint64_t value;
	int rc = gguf_get_u64(k->gguf, key_name(k, suffix), min, max, &value, k->err);
	if (rc == -ENOENT)
		return 0;
	if (!rc)
		*out = (uint32_t)value;
	return rc;
}

int need_count(struct keys *k, const char *suffix, uint64_t min, uint64_t max, uint32_t *out)
{
	if (!gguf_has(k->gguf, key_name(k, suffix)))
		return missing_key(k);
	return get_count(k, suffix, min, max, out);
}

int get_layers(struct keys *k, const char *suffix, uint64_t min, uint64_t max, uint32_t *out)
{
	enum gguf_value_type type;
	uint64_t n;
	uint32_t same = 0;
	const char *key = key_name(k, suffix);
	/* Without an error struct: that a scalar is not an array is no error. */
	if (gguf_get_array(k->gguf, key, &type, &n, NULL) != 0) {
		int rc = get_count(k, suffix, min, max, &same);
		for (uint32_t i = 0; !rc && i < k->n_blocks; i++)
			out[i] = same;
		return rc;
	}
	if (type == GGUF_STRING || type == GGUF_F32 || type == GGUF_F64 || type == GGUF_BOOL)
		return error_set(k->err, EINVAL, "key %s is an array, but not of integers", key);
	if (n != k->n_blocks)
		return error_set(k->err, EINVAL,
			"key %s is an array of %llu elements; the model has %u blocks", key,
			(unsigned long long)n, k->n_blocks);
	for (uint64_t i = 0; i < n; i++) {
		int64_t value = gguf_array_i64(k->gguf, key, i);
		if (value < (int64_t)min || value > (int64_t)max)
			return error_set(k->err, EINVAL,
				"key %s is %lld for block %llu; %llu to %llu are allowed", key,
				(long long)value, (unsigned long long)i, (unsigned long long)min,
				(unsigned long long)max);
		out[i] = (uint32_t)value;
	}
	return 0;
}

int get_layered(struct keys *k, const char *suffix, uint64_t max, uint32_t *out)
{
	uint32_t layers[LIMIT_LAYERS] = {0};
	if (!gguf_has(k->gguf, key_name(k, suffix)))
		return 0;
	int rc = get_layers(k, suffix, 1, max, layers);
	for (uint32_t i = 0; !rc && i < k->n_blocks; i++) {
		if (layers[i] != layers[0])
			return error_set(k->err, ENOTSUP,
				"key %s differs between blocks (%u in block 0, %u in block %u), "
				"which is not supported",
				k->key, layers[0], layers[i], i);
	}
	if (!rc)
		*out = layers[0];
	return rc;
}

int get_number(struct keys *k, const char *suffix, double min, double max, double *out)
{
	double value;
	const char *key = key_name(k, suffix);
	int rc = gguf_get_f64(k->gguf, key, &value, k->err);
	if (rc)
		return rc == -ENOENT ? 0 : rc;
	if (!(value >= min && value <= max))
		return error_set(
			k->err, EINVAL, "key %s is %g; %g to %g are allowed", key, value, min, max);
	*out = value;
	return 0;
}
