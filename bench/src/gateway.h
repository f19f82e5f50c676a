#pragma once

/* outrider-bench gateway: the cost of HTTP, compared with the SDK, for the same answers of one
 * service. */
int bench_gateway(int argc, char **argv);
