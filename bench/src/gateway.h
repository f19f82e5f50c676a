#pragma once

/* outrider-bench gateway: what HTTP costs beside the SDK, of the same answers of one service. */
int bench_gateway(int argc, char **argv);
