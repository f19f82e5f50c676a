#include "tests/fuzz/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	return fuzz_grammar(GRAMMAR_PARTS, data, bytes);
}
