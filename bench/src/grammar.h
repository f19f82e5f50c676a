#pragma once

/* outrider-bench grammar: the cost of constrained output with the vocabulary of a model file. */
int bench_grammar(int argc, char **argv);
