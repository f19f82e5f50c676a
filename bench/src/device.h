/* outrider-bench device: what an answer would take on a machine with a GPU whose memory holds only a
 * share of the experts. Simulated: no figure of it was measured on such a machine. device_shape.h
 * has the machines and models, cache_replay.h the simulation. */
#pragma once

/* Runs the subcommand; returns a sysexits status. */
int bench_device(int argc, char **argv);
