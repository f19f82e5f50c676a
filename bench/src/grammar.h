#pragma once

/* outrider-bench grammar: what constrained output costs with the vocabulary of a model file. */
int bench_grammar(int argc, char **argv);
