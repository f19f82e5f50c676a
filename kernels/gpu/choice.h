/*
 * The services' setting `device`: cpu, auto, cuda, cuda:N, cuda:GPU-UUID or simt.
 */
#pragma once

struct error;

enum gpu_choice {
	GPU_CHOICE_CPU,
	GPU_CHOICE_AUTO, /* the first GPU, if it can be used */
	GPU_CHOICE_CUDA,
	GPU_CHOICE_SIMT,
};

/* Reads the setting. *device is what struct backend_gpu_options wants, a part of `text`. -ENOEXEC,
 * with what is allowed. */
int gpu_choice_read(
	const char *text, enum gpu_choice *choice, const char **device, struct error *err);
