/* Any text as limits of layers. What is read is in range, and what is written of it is read as the same. */
#include "shared/base/layer_limits.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	uint16_t limits[LIMIT_LAYERS], again[LIMIT_LAYERS];
	char written[LAYER_LIMITS_TEXT];
	struct error err = {""};
	if (bytes < 1)
		return 0;
	uint32_t n_layers = data[0] + 1u, n_experts = data[0] % 3u * 64 + 1;
	char *text = malloc(bytes);
	memcpy(text, data + 1, bytes - 1);
	text[bytes - 1] = '\0';
	int rc = layer_limits_read("fuzz", text, n_layers, n_experts, limits, &err);
	if (rc == 0 && layer_limits_form("fuzz", text, &err) < 0)
		abort();
	free(text);
	if (rc < 0) {
		if (!err.text[0])
			abort();
		return 0;
	}
	for (uint32_t l = 0; l < LIMIT_LAYERS; l++)
		if (limits[l] >= n_experts || (l >= n_layers && limits[l] != 0))
			abort();
	layer_limits_text(limits, n_layers, written);
	if (layer_limits_read("fuzz", written, n_layers, n_experts, again, &err) < 0 ||
		memcmp(limits, again, sizeof(limits)) != 0)
		abort();
	return 0;
}
