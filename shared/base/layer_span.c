#include "shared/base/layer_span.h"

bool layer_number_read(const char **at, int digits, uint32_t *out)
{
	const char *from = *at;

	for (*out = 0; **at >= '0' && **at <= '9' && *at - from < digits; ++*at)
		*out = *out * 10 + (uint32_t)(**at - '0');
	return *at > from;
}

bool layer_span_read(const char **at, int digits, struct layer_span *out)
{
	if (!layer_number_read(at, digits, &out->first))
		return false;
	out->last = out->first;
	out->open = false;
	if (**at == '-') {
		++*at;
		out->open = !layer_number_read(at, digits, &out->last);
		if (out->open)
			out->last = out->first;
	}
	return true;
}
