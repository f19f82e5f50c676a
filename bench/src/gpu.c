#include "bench/src/gpu.h"

#include "kernels/gpu/backend.h"
#include "shared/base/plural.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

int gpu_check(const char *name, bool cpu, struct error *err)
{
	if ((cpu && strcmp(name, "cpu") == 0) || strcmp(name, "simt") == 0 ||
		strcmp(name, "cuda") == 0)
		return 0;
	return error_set(err, EINVAL, "--backend is \"%s\", allowed are %ssimt and cuda", name,
		cpu ? "cpu, " : "");
}

int gpu_open(const char *name, struct backend **out, struct error *err)
{
	const struct backend_gpu_options options = {.device = ""};

	return strcmp(name, "cuda") == 0 ? backend_cuda_create(&options, out, err)
					 : backend_simt_create(&options, out, err);
}

bool gpu_emulated(const struct backend *backend)
{
	return strcmp(backend->ops->name, "simt") == 0;
}

int gpu_finish(struct queue *q, struct error *err)
{
	int rc = q->ops->wait(q, q->ops->ticket(q));

	if (rc < 0 && q->ops->failure(q->backend, err) == 0)
		return error_set(err, -rc, "the GPU has failed: %s", strerror(-rc));
	return rc;
}

json_t *gpu_json(const struct backend *backend, uint32_t rounds)
{
	return json_pack("{s:s, s:s, s:s, s:i, s:b}", "backend", backend->ops->name, "device",
		backend->device->name, "driver", backend->device->driver, "rounds", (int)rounds,
		"emulated", gpu_emulated(backend));
}

void gpu_say(const struct backend *backend, uint32_t rounds)
{
	const struct backend_device *device = backend->device;

	printf("%s%s%s; median of %u round%s\n", device->name,
		device->driver[0] != '\0' ? ", driver for CUDA " : "", device->driver, rounds,
		plural(rounds));
	if (gpu_emulated(backend))
		puts("This is an emulation on the CPU: its speeds say nothing of a GPU.");
}

double gpu_number(const json_t *object, const char *key)
{
	return json_real_value(json_object_get(object, key));
}

static void show(const struct gpu_bench *of, void *bench, bool json)
{
	json_t *result = of->report(bench);

	if (json) {
		json_dumpf(result, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
		putchar('\n');
	} else {
		of->print(bench, result);
	}
	json_decref(result);
}

int gpu_run(const struct gpu_bench *of, void *bench, bool json, struct error *err)
{
	int rc = of->start(bench, err);

	if (rc == 0)
		rc = of->measure(bench, err);
	if (rc == 0)
		show(of, bench, json);
	of->stop(bench);
	return rc;
}
