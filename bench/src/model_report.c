#include "bench/src/machine.h"
#include "kernels/cpu/simd.h"
#include "shared/base/median.h"
#include "bench/src/model.h"
#include "shared/base/plural.h"

#include <stdio.h>
#include <string.h>

static double middle(const double *values, uint32_t n)
{
	double copy[MODEL_ROUNDS];

	memcpy(copy, values, n * sizeof(*copy));
	return median(copy, n);
}

/* Medians of times over the rounds, and means of figures that do not depend on time. */
struct figures {
	double s, bytes_s, kv_s, expert_s, roofline_s, read_gb_s;
	double bytes, expert_bytes, kv_bytes, int8_ops, experts;
};

static struct figures figures_of(const struct model_bench *b, const struct series *s)
{
	uint32_t rounds = b->options.rounds;

	return (struct figures){
		.s = middle(s->seconds, rounds),
		.bytes_s = middle(s->bytes_s, rounds),
		.kv_s = middle(s->kv_s, rounds),
		.expert_s = middle(s->expert_s, rounds),
		.roofline_s = middle(s->roofline_s, rounds),
		.read_gb_s = middle(s->read_gb_s, rounds),
		.bytes = s->bytes / s->n_passes,
		.expert_bytes = s->expert_bytes / s->n_passes,
		.kv_bytes = s->kv_bytes / s->n_passes,
		.int8_ops = s->int8_ops / s->n_passes,
		.experts = s->experts / s->n_passes,
	};
}

static json_t *prefill(const struct model_bench *b, const struct peaks *peaks)
{
	struct figures f = figures_of(b, &b->prefill);

	return json_pack("{s:i, s:f, s:f, s:f, s:f, s:f}", "n", (int)b->prefill.n, "tokens_per_s",
		b->prefill.n / f.s, "ms", 1e3 * f.s, "roofline_ms", 1e3 * f.roofline_s,
		"floor_share", f.roofline_s / f.s, "int8_share",
		f.int8_ops / 1e9 / peaks->int8_gop_s / f.s);
}

static json_t *decode(const struct model_bench *b, const struct series *s)
{
	struct figures f = figures_of(b, s);

	return json_pack("{s:f, s:f, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "tokens_per_s",
		1 / f.s, "bandwidth_share", f.bytes_s / f.s, "depth", (int)s->depth, "ms",
		1e3 * f.s, "bytes", f.bytes, "bytes_ms", 1e3 * f.bytes_s, "kv_bytes", f.kv_bytes,
		"kv_ms", 1e3 * f.kv_s, "distinct_experts", f.experts, "read_gb_s", f.read_gb_s);
}

/* The time that the context beyond the first depth costs, divided by the least time in which its
 * keys and values can be read. */
static json_t *decode_deeper(const struct model_bench *b, uint32_t i)
{
	json_t *row = decode(b, &b->decode[i]);
	struct figures first = figures_of(b, &b->decode[0]), f = figures_of(b, &b->decode[i]);
	double extra = f.s - first.s;

	json_object_set_new(row, "extra_ms", json_real(1e3 * extra));
	json_object_set_new(row, "extra_kv_ms", json_real(1e3 * (f.kv_s - first.kv_s)));
	json_object_set_new(row, "kv_cost", json_real(extra / (f.kv_s - first.kv_s)));
	return row;
}

static json_t *batch(const struct model_bench *b, const struct series *s)
{
	struct figures f = figures_of(b, s);
	double one = figures_of(b, &b->decode[0]).s;

	return json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "n",
		(int)s->n, "tokens_per_s", s->n / f.s, "distinct_experts", f.experts, "floor_share",
		f.roofline_s / f.s, "cost", f.s / one, "ms", 1e3 * f.s, "expert_bytes",
		f.expert_bytes, "expert_ms", 1e3 * f.expert_s, "bytes", f.bytes, "bytes_ms",
		1e3 * f.bytes_s, "roofline_ms", 1e3 * f.roofline_s, "read_gb_s", f.read_gb_s);
}

static json_t *memory(const struct model_bench *b)
{
	const struct passes *p = &b->passes;
	uint64_t packed = p->engine.weights ? p->engine.weights_bytes : 0;
	uint64_t peak, mapped, kv = kv_bytes(&p->engine.kv.layout);

	passes_memory("/proc/self/status", "/proc/self/smaps", &peak, &mapped);
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "peak_rss_bytes", (json_int_t)peak,
		"mapped_weight_bytes", (json_int_t)mapped, "packed_weight_bytes",
		(json_int_t)packed, "kv_bytes", (json_int_t)kv, "bench_bytes",
		(json_int_t)p->memory.bytes, "beyond_bytes",
		(json_int_t)(peak - mapped - packed - kv - p->memory.bytes));
}

/* What is not measured of a GPU. */
static void forget_unknown(json_t *all)
{
	static const char *const names[] = {"int8_gop_s", "int16_gop_s", "f32_gop_s", "bf16_gop_s"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		json_object_set_new(json_object_get(all, "peaks"), names[i], json_null());
	json_object_set_new(json_object_get(all, "prefill"), "int8_share", json_null());
}

json_t *model_report(const struct model_bench *b, const char *cpu)
{
	const struct engine *e = &b->passes.engine;
	struct peaks peaks = peaks_median(b->peaks, b->options.rounds);
	json_t *all, *rows = json_array(), *depths = json_array();

	bool on_cpu = e->pool != NULL;
	all = json_pack("{s:s, s:s, s:s, s:i, s:i, s:s, s:i, s:s, s:{s:f, s:f, s:f, s:f, s:f}}",
		"cpu", cpu, "backend", e->backend->ops->name, "model", b->options.engine.model,
		"threads", on_cpu ? (int)pool_threads(e->pool) : 1, "active_threads",
		on_cpu ? (int)pool_active(e->pool) : 1, "kernels",
		on_cpu ? e->kernels->name : e->backend->variant, "rounds", (int)b->options.rounds,
		"kv", kv_type_name(e->kv.layout.type), "peaks", "read_gb_s", peaks.read_gb_s,
		"int8_gop_s", peaks.int8_gop_s, "int16_gop_s", peaks.int16_gop_s, "f32_gop_s",
		peaks.f32_gop_s, "bf16_gop_s", peaks.bf16_gop_s);
	for (uint32_t i = 0; i < b->n_batch; i++)
		json_array_append_new(rows, batch(b, &b->batch[i]));
	for (uint32_t i = 1; i < b->n_depths; i++)
		json_array_append_new(depths, decode_deeper(b, i));
	json_object_set_new(all, "prefill", prefill(b, &peaks));
	json_object_set_new(all, "decode", decode(b, &b->decode[0]));
	json_object_set_new(all, "batch", rows);
	json_object_set_new(all, "depths", depths);
	json_object_set_new(all, "memory", memory(b));
	if (!on_cpu)
		forget_unknown(all);
	return all;
}

static double number(const json_t *object, const char *name)
{
	return json_number_value(json_object_get(object, name));
}

static double mib(const json_t *object, const char *name)
{
	return number(object, name) / (1 << 20);
}

static const char *text(const json_t *object, const char *name)
{
	return json_string_value(json_object_get(object, name));
}

static void print_gpu_head(const struct model_bench *b, const json_t *all)
{
	const struct backend_device *device = b->passes.engine.backend->device;
	int rounds = (int)number(all, "rounds");

	printf("%s, %s%s%s, KV %s; medians of %d round%s\n", text(all, "model"), device->name,
		device->driver[0] != '\0' ? ", driver for CUDA " : "", device->driver,
		text(all, "kv"), rounds, plural((uint64_t)rounds));
	if (strcmp(text(all, "backend"), "simt") == 0)
		puts("This is an emulation on the CPU: its speeds say nothing of a GPU.");
	printf("peak: copies in its memory, read and written, %.2f GB/s\n"
	       "floor: the bytes of the matrices at that bandwidth, measured anew around every "
	       "line\n\n",
		number(json_object_get(all, "peaks"), "read_gb_s"));
}

static void print_head(const json_t *all, const struct pool *pool)
{
	const json_t *peaks = json_object_get(all, "peaks");
	char threads[MACHINE_THREADS_BYTES];
	int rounds = (int)number(all, "rounds");

	printf("%s, %s, %s, %s kernels, KV %s; medians of %d round%s\n", text(all, "model"),
		text(all, "cpu"), machine_threads(pool, threads), text(all, "kernels"),
		text(all, "kv"), rounds, plural((uint64_t)rounds));
	printf("peaks of this machine: read %.1f GB/s, int8 %.0f GOP/s, int16 %.0f GOP/s, float32 "
	       "%.0f GOP/s",
		number(peaks, "read_gb_s"), number(peaks, "int8_gop_s"),
		number(peaks, "int16_gop_s"), number(peaks, "f32_gop_s"));
	if (number(peaks, "bf16_gop_s") > 0)
		printf(", bfloat16 %.0f GOP/s (unused: BF16 is compared with float32)",
			number(peaks, "bf16_gop_s"));
	puts("\nfloor: the sum over the matrices of what takes longer, their bytes at the read "
	     "bandwidth or their operations\nat the peak of their type; the bandwidth is measured "
	     "anew around every line\n");
}

static void print_decode(const json_t *row)
{
	printf("decode at %-7d %8.1f tokens/s %9.2f ms; %.1f MiB need %.2f ms: %.0f%%; KV of it "
	       "%.1f MiB, %.2f ms\n",
		(int)number(row, "depth"), number(row, "tokens_per_s"), number(row, "ms"),
		mib(row, "bytes"), number(row, "bytes_ms"), 100 * number(row, "bandwidth_share"),
		mib(row, "kv_bytes"), number(row, "kv_ms"));
	if (json_object_get(row, "kv_cost"))
		printf("                  %.2f ms more than at the first depth, %.2f times what "
		       "the KV bytes need\n",
			number(row, "extra_ms"), number(row, "kv_cost"));
}

static void print_memory(const json_t *memory)
{
	printf("\npeak memory %.1f MiB: file %.1f, packed %.1f, KV %.1f, this bench's own %.1f, "
	       "beyond these %.1f\n",
		mib(memory, "peak_rss_bytes"), mib(memory, "mapped_weight_bytes"),
		mib(memory, "packed_weight_bytes"), mib(memory, "kv_bytes"),
		mib(memory, "bench_bytes"), mib(memory, "beyond_bytes"));
}

void model_report_text(const struct model_bench *b, const json_t *all)
{
	const json_t *row, *prompt = json_object_get(all, "prefill");
	const struct pool *pool = b->passes.engine.pool;
	size_t i;

	if (pool != NULL)
		print_head(all, pool);
	else
		print_gpu_head(b, all);
	printf("prefill of %-6d %8.1f tokens/s %9.2f ms; floor %.2f ms: %.0f%%",
		(int)number(prompt, "n"), number(prompt, "tokens_per_s"), number(prompt, "ms"),
		number(prompt, "roofline_ms"), 100 * number(prompt, "floor_share"));
	if (pool != NULL)
		printf("; of the int8 peak %.0f%%", 100 * number(prompt, "int8_share"));
	putchar('\n');
	print_decode(json_object_get(all, "decode"));
	json_array_foreach(json_object_get(all, "depths"), i, row) print_decode(row);
	puts("\n    n  tokens/s  T(n)/T(1)  experts  their MiB  their ms   all MiB  bytes ms  "
	     "floor ms        ms  of floor");
	json_array_foreach(json_object_get(all, "batch"), i, row) printf(
		"%5d %9.1f %10.2f %8.0f %10.1f %9.2f %9.1f %9.2f %9.2f %9.2f %8.0f%%\n",
		(int)number(row, "n"), number(row, "tokens_per_s"), number(row, "cost"),
		number(row, "distinct_experts"), mib(row, "expert_bytes"), number(row, "expert_ms"),
		mib(row, "bytes"), number(row, "bytes_ms"), number(row, "roofline_ms"),
		number(row, "ms"), 100 * number(row, "floor_share"));
	print_memory(json_object_get(all, "memory"));
}
