#include "services/drafter/config.h"

#include "kernels/gpu/choice.h"
#include "shared/model/arch/skip.h"
#include "shared/spec/session.h"

#include <sched.h>

static int check_skip(const struct drafter_config *config, struct error *err)
{
	struct skip skip;
	struct error why;
	if (skip_parse(config->skip_layers, &skip, &why) == 0)
		return 0;
	return error_set(err, ENOEXEC, "skip_layers = %s", why.text);
}

static int check_device(const struct drafter_config *config, struct error *err)
{
	enum gpu_choice choice;
	const char *device;
	return gpu_choice_read(config->device, &choice, &device, err);
}

int drafter_config_resolve(struct drafter_config *config, struct error *err)
{
	cpu_set_t set;
	int cpus = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
	config->few_cpus = cpus <= 2;
	if (config->chunk_allocated == 0)
		config->chunk_allocated = config->chunk;
	if (config->threads == 0)
		config->threads = config->few_cpus ? 1 : 2;
	if (config->ngram_min > config->ngram_max)
		return error_set(err, ENOEXEC,
			"ngram_min = %d is not allowed; ngram_min takes 1 to ngram_max (%d)",
			(int)config->ngram_min, (int)config->ngram_max);
	if (config->method == DRAFT_REPLAY)
		return error_set(err, ENOEXEC,
			"method = replay is not allowed: only a request can choose it, because it "
			"brings the tokens to replay (outrider run --replay)");
	if (config->method == DRAFT_MTP_LORA)
		return error_set(err, ENOEXEC,
			"method = mtp-lora is not allowed: with --adapter FILE the verifier drafts "
			"by itself, and requests choose it: outrider run --draft-method mtp-lora");
	if (config->method == DRAFT_MODEL && config->draft[0] == '\0')
		return error_set(err, ENOEXEC, "method = model needs a draft model: draft = FILE");
	if (config->method == DRAFT_EAGLE3 && config->draft[0] == '\0')
		return error_set(err, ENOEXEC, "method = eagle3 needs a head: draft = FILE");
	int r = check_skip(config, err);
	if (r == 0)
		r = check_device(config, err);
	if (r < 0)
		return r;
	return config_spin("spin", config->spin, cpus <= 4 ? 0 : 50000, &config->spin_ns, err);
}

int drafter_config_check(const void *changed, struct error *err)
{
	struct drafter_config config = *(const struct drafter_config *)changed;
	if (config.chunk_allocated != 0 && config.chunk > config.chunk_allocated)
		return error_set(err, ENOEXEC,
			"chunk = %d: memory was reserved for the %d of the start; more needs a "
			"restart (--next-start, then restart outrider-drafter)",
			(int)config.chunk, (int)config.chunk_allocated);
	return drafter_config_resolve(&config, err);
}
