/* Experts on a device (the emulated one) above slots in memory above the file: what the verifier's source gets is the file's, when
 * the slots are short, when copies fail, and when somebody else writes to the table; and what is left to the CPU. */
#include "kernels/gpu/backend.h"
#include "services/expert-cache/device/share.h"
#include "tests/expert-cache/transfer_rig.h"

#include "shared/base/log.h"
#include "shared/spec/balance.h"
#include "shared/spec/device_rescue.h"
#include "shared/spec/slots_word.h"

#include <errno.h>

/* Owner and verifier, each with a back end of its own as in two processes. */
struct tiers {
	struct rig rig;
	struct device device;
	struct backend *owners, *verifiers;
	struct queue *q;
	struct buffer seen; /* one expert, where the host sees it */
};

static struct backend *simt(void)
{
	const struct backend_gpu_options options = {.seed = 0};
	struct backend *backend = NULL;
	struct error err = {""};
	if (backend_simt_create(&options, &backend, &err) != 0)
		fail_msg("%s", err.text);
	return backend;
}

static void begin_patiently(
	struct tiers *t, uint32_t slots, uint32_t device_slots, uint64_t patience_ns)
{
	struct error err = {""};
	struct rig *rig = &t->rig;
	memset(t, 0, sizeof(*t));
	rig_start(rig, &(struct rig_options){.budget = slots, .no_worker = true});
	experts_cached_destroy(&rig->cached);
	const struct device_options of = {
		.backend = t->owners = simt(),
		.n_slots = device_slots,
		.configured = "",
		.budget = "",
		.model_fingerprint = model->file_fingerprint,
		.model_files = gguf_files(model->gguf),
		.policy = cache_policy_find("lru"),
		.queue_max = 64,
		.recovered_fd = -1,
		.recovered_memory_fd = -1,
	};
	if (device_open(&t->device, &geometry, &of, &err) != 0)
		fail_msg("%s", err.text);
	const struct transfer_options transfer = {.generation = 1};
	assert_int_equal(transfer_start(&rig->transfer, &rig->store, rig->reader, &t->device,
				 &transfer, &err),
		0);
	unsetenv("OUTRIDER_SIMT_LOST_COPY");
	t->verifiers = simt();
	const struct queue_limits limits = {0};
	assert_int_equal(t->verifiers->ops->queue(t->verifiers, &limits, &t->q, &err), 0);
	assert_int_equal(t->verifiers->ops->alloc(t->verifiers, device_slot_bytes(&geometry),
				 BUFFER_HOST, &t->seen, &err),
		0);
	const struct experts_cached_options cached = {
		.backend = t->verifiers,
		.host = test_backend(),
		.patience_ns = patience_ns,
		.generation = 5,
		.cache_alive = rig_alive,
		.arg = rig,
	};
	assert_int_equal(experts_cached_create(model, &cached, &rig->cached, &err), 0);
	experts_cached_queue(rig->cached, t->q);
	assert_int_equal(
		experts_cached_attach(rig->cached, &rig->store.region, &rig->store.hints, &err), 0);
	if (experts_cached_attach_device(
		    rig->cached, &t->device.region, t->device.memory_fd, &err) != 0)
		fail_msg("%s", err.text);
	rig->source = experts_cached_source(rig->cached);
}

static void begin(struct tiers *t, uint32_t slots, uint32_t device_slots)
{
	begin_patiently(t, slots, device_slots, 30000000000ull);
}

static void end(struct tiers *t)
{
	struct rig *rig = &t->rig;
	experts_cached_destroy(&rig->cached);
	transfer_stop(&rig->transfer);
	device_close(&t->device);
	reader_close(&rig->reader);
	store_close(&rig->store);
	t->q->ops->queue_free(t->q);
	t->verifiers->ops->free(&t->seen);
	t->verifiers->ops->destroy(t->verifiers);
	t->owners->ops->destroy(t->owners);
}

/* Compares a view with the file, behind everything that was queued before. */
static bool as_in_file(
	struct tiers *t, uint32_t layer, uint32_t expert, const struct expert_view *view)
{
	const struct layer *l = &model->layers[layer];
	const struct slots_layer_geometry *of = &geometry.layers[layer];
	const void *from[EXPERT_PARTS] = {
		in_file(&l->gate, expert), in_file(&l->up, expert), in_file(&l->down, expert)};
	const struct place places[EXPERT_PARTS] = {view->gate, view->up, view->down};
	uint64_t bytes = device_expert_bytes(of);
	unsigned char *expected = calloc(1, bytes);
	assert_non_null(expected);
	device_pack(of, from, model->expert_layout, expected);
	if (view->by_cpu) {
		const void *seen[EXPERT_PARTS] = {
			place_at(view->gate), place_at(view->up), place_at(view->down)};
		device_pack(of, seen, view->layout, t->seen.host);
	}
	for (int p = 0; !view->by_cpu && p < EXPERT_PARTS; p++)
		t->q->ops->copy(t->q, (struct place){&t->seen, device_part_at(of, p)}, places[p],
			of->part[p].bytes);
	assert_int_equal(t->q->ops->wait(t->q, t->q->ops->ticket(t->q)), 0);
	bool same = true;
	for (int p = 0; p < EXPERT_PARTS; p++)
		same = same &&
		       memcmp(expected + device_part_at(of, p),
			       t->seen.host + device_part_at(of, p), of->part[p].bytes) == 0;
	free(expected);
	return same;
}

/* One layer, as the forward pass asks for it. Returns how many experts differ from the file; GIVEN_UP:
 * the source has. */
enum { GIVEN_UP = 1000000 };

/* by_cpu: the number of those that the CPU is to compute. */
static int layer_with(
	struct tiers *t, uint32_t layer, const uint16_t *experts, uint32_t n, uint32_t *by_cpu)
{
	static struct expert_view views[LIMIT_EXPERTS];
	uint16_t tokens[LIMIT_EXPERTS];
	struct expert_source *source = t->rig.source;
	int wrong = 0, got = 0, k;
	*by_cpu = 0;
	for (uint32_t i = 0; i < n; i++) {
		tokens[i] = 1;
		/* As a layer before left it. */
		views[i] = (struct expert_view){.by_cpu = true, .waits = true};
	}
	source->ops->begin(source, layer, experts, tokens, n);
	while ((k = source->ops->ready(source, views)) > 0) {
		for (int i = 0; i < k; i++) {
			wrong += !as_in_file(t, layer, experts[views[i].index], &views[i]);
			*by_cpu += views[i].by_cpu;
		}
		ticket until = t->q->ops->ticket(t->q);
		source->ops->used(source, t->q, until);
		(void)t->q->ops->wait(t->q, until);
		got += k;
	}
	source->ops->end(source);
	assert_true(k < 0 || got == (int)n);
	return k < 0 ? GIVEN_UP : wrong;
}

static int layer_of(struct tiers *t, uint32_t layer, uint32_t first, uint32_t n)
{
	uint16_t experts[LIMIT_EXPERTS];
	uint32_t by_cpu;
	for (uint32_t i = 0; i < n; i++)
		experts[i] = (uint16_t)((first + i) % geometry.n_experts);
	return layer_with(t, layer, experts, n, &by_cpu);
}

/* Passes over all layers. */
static int passes(struct tiers *t, uint32_t n, uint32_t experts)
{
	int wrong = 0;
	for (uint32_t pass = 0; pass < n; pass++)
		for (uint32_t l = 0; l < geometry.n_layers; l++)
			if (geometry.layers[l].moe)
				wrong += layer_of(t, l, pass * 3 + l, experts);
	return wrong;
}

static void three_tiers_give_the_files_bytes(void **state)
{
	(void)state;
	need_model();
	struct tiers t;
	uint32_t least = slots_min(&geometry);
	begin(&t, least + 2, least + 4);
	assert_int_equal(passes(&t, 6, 8), 0);
	struct device_header *header = t.device.slots.header;
	assert_true(counter(&header->loads) > least && counter(&header->evictions) > 0);
	assert_int_equal(counter(&header->self_served), 0);
	assert_true(counter(&t.rig.store.slots.header->demand_misses) > 0);
	assert_false(experts_cached_damaged(t.rig.cached));
	end(&t);
}

/* What is resident is what passes find at once: the device's, not what lies in memory as well. */
static void experts_are_where_passes_read_them(void **state)
{
	struct experts_places places;
	struct error err;
	struct tiers t;
	uint32_t least, n_ready = 0;
	(void)state;
	need_model();
	least = slots_min(&geometry);
	begin(&t, least + 2, least + 4);
	assert_int_equal(passes(&t, 2, 8), 0);
	assert_true(experts_cached_places(t.rig.cached, &places));
	assert_int_equal(places.n_slots, least + 4);
	assert_int_equal(places.n_experts, geometry.n_experts);
	for (uint32_t i = 0; i < places.n_slots; i++) {
		uint64_t word = atomic_load(&places.state[i]);
		if (slot_state(word) != SLOT_READY)
			continue;
		assert_int_equal(word, atomic_load(&t.device.slots.state[i]));
		n_ready++;
	}
	assert_true(n_ready > 0);
	assert_int_equal(experts_cached_attach_device(t.rig.cached, NULL, -1, &err), 0);
	assert_true(experts_cached_places(t.rig.cached, &places));
	assert_int_equal(places.n_slots, t.rig.store.slots.n_slots);
	assert_int_not_equal(places.n_slots, least + 4);
	assert_int_equal(experts_cached_attach(t.rig.cached, NULL, NULL, &err), 0);
	assert_false(experts_cached_places(t.rig.cached, &places));
	end(&t);
}

/* The first layer with experts. */
static uint32_t first_layer(void)
{
	uint32_t layer = 0;
	while (!geometry.layers[layer].moe)
		layer++;
	return layer;
}

/* Then a pass need not ask layer by layer, and says afterwards what it chose. */
static void when_all_fit_their_places_are_settled(void **state)
{
	(void)state;
	need_model();
	struct tiers t;
	struct expert_view view;
	const uint16_t experts[] = {1, 4, 5}, tokens[] = {2, 1, 3};
	begin(&t, slots_min(&geometry), geometry.n_total);
	struct expert_source *source = t.rig.source;
	struct device_header *header = t.device.slots.header;
	assert_int_equal(source->ops->settled(source), 0);
	while (atomic_load(&header->resident) == 0)
		assert_int_equal(passes(&t, 12, 8), 0);
	uint64_t number = source->ops->settled(source);
	assert_int_not_equal(number, 0);
	assert_int_equal(passes(&t, 2, 8), 0);
	assert_int_equal(source->ops->settled(source), number);
	for (uint32_t l = 0; l < geometry.n_layers - geometry.n_drafting; l++)
		for (uint32_t e = 0; geometry.layers[l].moe && e < geometry.n_experts; e++) {
			source->ops->place(source, l, (uint16_t)e, &view);
			assert_true(as_in_file(&t, l, e, &view));
		}
	uint64_t hits = counter(&header->hits), lookups = source->stats.lookups;
	uint64_t iteration = experts_cached_iteration(t.rig.cached);
	source->ops->chose(source, first_layer(), experts, tokens, 3);
	assert_int_equal(counter(&header->hits), hits + 3);
	assert_int_equal(source->stats.lookups, lookups + 3);
	assert_int_equal(experts_cached_iteration(t.rig.cached), iteration + 1);
	assert_false(experts_cached_damaged(t.rig.cached));
	/* Somebody else writes to the state of one of them: the pass that read it is found out. */
	uint32_t slot = device_find(&t.device.slots, first_layer(), 4);
	uint64_t word = atomic_exchange(&t.device.slots.state[slot], 0);
	source->ops->chose(source, first_layer(), experts, tokens, 3);
	assert_int_equal(source->ops->settled(source), 0);
	assert_true(experts_cached_damaged(t.rig.cached));
	atomic_store(&t.device.slots.state[slot], word);
	assert_int_equal(source->ops->settled(source), number);
	end(&t);
}

static void copies_that_fail_give_nothing_to_the_verifier(void **state)
{
	(void)state;
	need_model();
	for (int at = 1; at < 40; at += 13) {
		struct tiers t;
		char text[16];
		/* The owner's first two are those of a new region. */
		snprintf(text, sizeof(text), "%d", 2 + at);
		setenv("OUTRIDER_SIMT_LOST_COPY", text, 1);
		uint32_t least = slots_min(&geometry);
		begin(&t, least + 2, least + 4);
		struct device_header *header = t.device.slots.header;
		assert_int_equal(passes(&t, 6, 8), 0);
		assert_int_equal(atomic_load(&header->closed), 1);
		assert_true(counter(&header->loads) < (uint64_t)at);
		assert_true(counter(&header->self_served) > 0);
		assert_true(t.device.failed);
		end(&t);
	}
}

/* A queue waits for a load that nobody carries out, in a slot whose state somebody else has written
 * to. */
static void a_wait_ends_whatever_the_state_says(void **state)
{
	(void)state;
	need_model();
	struct tiers t;
	struct error err = {""};
	begin(&t, geometry.n_total, geometry.n_total);
	struct device_slots mapped, *slots = &mapped;
	struct device_rescue *rescue;
	const struct device_rescue_options options = {
		.model = model, .geometry = &geometry, .backend = t.verifiers};
	assert_int_equal(device_rescue_start(&options, &rescue, &err), 0);
	struct buffer memory, flags;
	assert_int_equal(
		t.verifiers->ops->import_fd(t.verifiers, t.device.memory_fd,
			(size_t)device_slot_at(t.device.slots.slot_bytes, geometry.n_total), true,
			&memory, &err),
		0);
	struct region own = {.fd = -1};
	int fd = fcntl(t.device.region.fd, F_DUPFD_CLOEXEC, 3);
	assert_int_equal(
		region_attach(fd, DEVICE_REGION, DEVICE_LAYOUT, REGION_DATA, true, &own, &err), 0);
	assert_int_equal(
		t.verifiers->ops->wrap(t.verifiers, own.header, own.bytes, &flags, &err), 0);
	const struct device_shape shape = {.n_layers = geometry.n_layers,
		.n_experts = geometry.n_experts,
		.slot_bytes = device_slot_bytes(&geometry),
		.model_fingerprint = model->file_fingerprint};
	assert_int_equal(device_map(&own, &shape, slots, &err), 0);
	uint32_t epoch = atomic_load(&slots->header->verifier_epoch), last = slots->n_slots - 1;
	const struct device_rescue_slots of = {*slots, epoch, &own, &memory, &flags};
	device_rescue_use(rescue, &of);

	struct device_pin pin;
	uint32_t layer = geometry.n_layers - 1;
	uint32_t load = device_load_begin(slots, last, layer, 0);
	assert_true(device_pin(slots, epoch, layer, 0, true, &pin));
	assert_int_equal(pin.slot, last);
	atomic_store(&slots->state[last], 0x123456789abcdef0ull);
	const struct device_wait wait = {
		.slot = last, .load = load, .layer = (uint16_t)layer, .patience_ns = 1000000};
	device_rescue_add(rescue, &wait);
	t.q->ops->wait_value(t.q, (struct place){&flags, device_flag_at(&own, slots, last)}, load);
	ticket until = t.q->ops->ticket(t.q);
	bool went_on = COMES_TRUE(t.q->ops->reached(t.q, until));
	/* So that a failure is one, and not a hang. */
	atomic_store(&slots->flag[last], load);
	assert_true(went_on);
	assert_int_equal(t.q->ops->wait(t.q, until), 0);
	assert_int_equal(counter(&slots->header->rescued), 0);
	assert_false(device_unpin(slots, last, epoch, layer, 0));
	device_rescue_stop(&rescue);
	t.verifiers->ops->free(&flags);
	t.verifiers->ops->free(&memory);
	region_close(&own);
	end(&t);
}

static uint64_t random_next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	return z ^ z >> 31;
}

/* Words of chance, ones, zeros and single bits, anywhere in the table of experts and in the states,
 * numbers, stamps and seals of slots. */
static void scribble(const struct tiers *t, uint64_t *random)
{
	const struct device_slots *slots = &t->device.slots;
	unsigned char *first = (unsigned char *)slots->table;
	unsigned char *end = (unsigned char *)(slots->seal + slots->n_slots);
	size_t bytes = (size_t)1 << random_next(random) % 7;
	unsigned char *at = first + random_next(random) % ((size_t)(end - first) - bytes);
	uint64_t kind = random_next(random) % 4;
	for (size_t i = 0; i < bytes; i++) {
		unsigned char *flags = (unsigned char *)slots->flag;
		if (at + i >= flags && at + i < flags + slots->n_slots * sizeof(uint32_t))
			continue;
		if (kind == 3)
			at[i] ^= (unsigned char)(i == 0 ? 1u << random_next(random) % 8 : 0);
		else
			at[i] = kind == 0   ? (unsigned char)random_next(random)
				: kind == 1 ? 0xff
					    : 0;
	}
}

static void nobody_believes_rubbish_in_the_table(void **state)
{
	(void)state;
	need_model();
	uint32_t least = slots_min(&geometry), found = 0;
	for (uint64_t seed = 1; seed <= 12; seed++) {
		struct tiers t;
		uint64_t random = seed;
		begin_patiently(&t, least + 2, least + 4, 2000000);
		assert_int_equal(passes(&t, 1, 8), 0);
		for (uint32_t i = 0; i < 20; i++) {
			uint32_t layer = (uint32_t)random_next(&random) % geometry.n_layers;
			scribble(&t, &random);
			if (!geometry.layers[layer].moe)
				continue;
			int wrong = layer_of(&t, layer, (uint32_t)random_next(&random) % 32, 8);
			bool damaged = experts_cached_damaged(t.rig.cached);
			assert_true(wrong == 0 || damaged);
			found += damaged;
		}
		/* A policy gets the slots that the owner knows, and a successor those that are
		 * whole. */
		void *policy = NULL;
		const struct cache_policy_ops *other = cache_policy_find("outrider");
		struct error err;
		transfer_stop(&t.rig.transfer);
		assert_int_equal(
			device_policy_create(&t.device, other, 64, NULL, &policy, &err), 0);
		device_switch_policy(&t.device, &other, &policy);
		other->destroy(policy);
		struct device_adopted adopted;
		int status = device_adopt(&t.device.slots, &geometry, &adopted, &err);
		assert_true(status == 0 || status == -EUCLEAN);
		end(&t);
	}
	print_message("# %u of 240 layers were found to be damaged\n", found);
}

/* Before the bytes are there, somebody else says that they are. */
static void a_flag_that_others_wrote_is_found(void **state)
{
	(void)state;
	need_model();
	struct tiers t;
	begin(&t, geometry.n_total, geometry.n_total);
	struct device_slots *slots = &t.device.slots;
	transfer_stop(&t.rig.transfer);
	uint32_t slot = device_find(slots, geometry.n_layers - 1, 0);
	assert_int_equal(slot, SLOT_NONE);
	slot = slots->n_slots - 1;
	uint32_t load = device_load_begin(slots, slot, geometry.n_layers - 1, 0);
	atomic_store(&slots->flag[slot], load + 5);
	assert_int_not_equal(layer_of(&t, geometry.n_layers - 1, 0, 1), 0);
	assert_true(experts_cached_damaged(t.rig.cached));
	/* And READY is not believed while the flag is behind. */
	load = device_load_begin(slots, slot - 1, geometry.n_layers - 1, 1);
	assert_true(device_load_end(slots, slot - 1, geometry.n_layers - 1, 1));
	struct device_pin pin;
	uint32_t epoch = atomic_load(&slots->header->verifier_epoch);
	assert_false(device_pin(slots, epoch, geometry.n_layers - 1, 1, false, &pin));
	assert_true(device_pin(slots, epoch, geometry.n_layers - 1, 1, true, &pin));
	assert_true(pin.coming && pin.load == load);
	end(&t);
}

static void the_device_is_shared_out(void **state)
{
	(void)state;
	const uint64_t gib = (uint64_t)1 << 30;
	struct backend *backend = simt();
	struct backend_memory memory = {.bytes = 16 * gib, .free = 16 * gib};
	struct device_share share;
	struct error err = {""};
	/* A fresh device, and an estimate. */
	device_share_find(backend, &memory, 3 * gib, 0, 0, 0, &share);
	assert_int_equal(share.reserve, gib);
	assert_int_equal(share.whole, 12 * gib);
	assert_int_equal(share.bytes, 12 * gib);
	assert_int_equal(device_share_check(&share, 13 * gib, 12 * gib, &err), 0);
	assert_int_equal(device_share_check(&share, 17 * gib, 12 * gib, &err), -ENOMEM);
	assert_non_null(strstr(err.text, "is estimated to take 3072.0 MiB"));
	/* The verifier has 2 of its 3, slots have 6, another program has 4. */
	memory.free = 4 * gib;
	device_share_find(backend, &memory, 3 * gib, 0, 2 * gib, 6 * gib, &share);
	assert_int_equal(share.whole, 12 * gib);
	assert_int_equal(share.bytes, 8 * gib);
	share.said = true;
	assert_int_equal(device_share_check(&share, 12 * gib, 8 * gib, &err), 0);
	assert_int_equal(device_share_check(&share, 13 * gib, 8 * gib, &err), -ENOMEM);
	assert_non_null(strstr(err.text, "device_budget: 13.0 GiB for experts"));
	assert_non_null(strstr(err.text,
		"but the emulated GPU has 16.0 GiB, of which the verifier takes 3072.0 MiB"));
	assert_non_null(strstr(err.text, "12.0G is the largest allowed, auto takes 8192.0 MiB"));
	/* Not even the least. */
	memory.bytes = 2 * gib;
	device_share_find(backend, &memory, 3 * gib, 0, 0, 0, &share);
	share.said = true;
	assert_int_equal(share.bytes, 0);
	assert_int_equal(device_share_check(&share, gib, gib, &err), -ENOMEM);
	assert_non_null(strstr(err.text, "one layer may need 1024.0 MiB of them"));
	/* The service may take less than there is. */
	memory = (struct backend_memory){16 * gib, 16 * gib};
	device_share_find(backend, &memory, 3 * gib, 0, 0, 0, &share);
	share.said = true;
	device_share_limit(&share, 4 * gib);
	assert_int_equal(device_share_check(&share, 2 * gib, gib, &err), -ENOMEM);
	assert_string_equal(err.text,
		"device_budget: 2048.0 MiB for experts, but the service may take 4096.0 MiB of the "
		"emulated GPU (device_memory), of which the verifier takes 3072.0 MiB for weights, "
		"passes and KV cache: 1024M is the largest allowed, auto takes 1024.0 MiB");
	assert_int_equal(device_share_check(&share, 2 * gib, 2 * gib, &err), -ENOMEM);
	assert_non_null(strstr(err.text,
		": 1024.0 MiB are left, but the fewest experts need 2048.0 MiB: set a larger "
		"device_memory, or "));
	/* Any numbers. */
	memory = (struct backend_memory){UINT64_MAX, UINT64_MAX};
	device_share_find(backend, &memory, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, &share);
	assert_int_equal(share.bytes, 0);
	backend->ops->destroy(backend);
}

static void the_drafter_gets_all_or_nothing(void **state)
{
	(void)state;
	const uint64_t gib = (uint64_t)1 << 30;
	struct backend *backend = simt();
	struct backend_memory memory = {.bytes = 16 * gib, .free = 4 * gib};
	struct device_share share;
	struct error err = {""};
	/* The verifier has its 3, slots 9; 2 are asked for. */
	device_share_find(backend, &memory, 3 * gib, 2 * gib, 3 * gib, 9 * gib, &share);
	assert_int_equal(share.most, 12 * gib);
	assert_int_equal(share.whole, 10 * gib);
	assert_int_equal(share.bytes, 10 * gib);
	assert_int_equal(device_share_drafter(&share, 10 * gib, false, "auto", &err), 0);
	assert_int_equal(device_share_drafter(&share, 10 * gib + 1, false, "auto", &err), -ENOMEM);
	assert_int_equal(device_share_drafter(&share, 11 * gib, false, "11G", &err), -ENOMEM);
	assert_string_equal(err.text,
		"the emulated GPU has 16.0 GiB, of which the verifier takes 3072.0 MiB, experts "
		"11.0 GiB (device_budget = 11G), and a reserve 1024.0 MiB: 1024.0 MiB are left");
	/* Another program has 3: they count, unless the drafter has its part already. */
	memory.free = gib;
	device_share_find(backend, &memory, 3 * gib, 2 * gib, 3 * gib, 9 * gib, &share);
	assert_int_equal(share.both, 9 * gib);
	assert_int_equal(device_share_drafter(&share, 9 * gib, false, "auto", &err), -ENOMEM);
	assert_non_null(
		strstr(err.text, "1024.0 MiB, and other programs have some: 0.0 MiB are left"));
	assert_int_equal(device_share_drafter(&share, 9 * gib, true, "auto", &err), 0);
	/* What a budget is refused with names it. */
	share.said = true;
	assert_int_equal(device_share_check(&share, 11 * gib, gib, &err), -ENOMEM);
	assert_non_null(
		strstr(err.text, "KV cache and the drafter 2048.0 MiB for a draft model: "));
	/* The service may take less than there is: nobody keeps a reserve. */
	device_share_find(backend, &memory, 3 * gib, 2 * gib, 3 * gib, 9 * gib, &share);
	device_share_limit(&share, 6 * gib);
	assert_int_equal(device_share_drafter(&share, 2 * gib, true, "auto", &err), -ENOMEM);
	assert_string_equal(err.text,
		"the service may take 6144.0 MiB of the emulated GPU (device_memory), of which the "
		"verifier takes 3072.0 MiB, experts 2048.0 MiB (device_budget = auto): 1024.0 MiB "
		"are left");
	/* More than there is. */
	device_share_find(backend, &memory, 3 * gib, UINT64_MAX, 0, 0, &share);
	assert_int_equal(share.whole, 0);
	assert_int_equal(device_share_drafter(&share, 0, true, "auto", &err), -ENOMEM);
	backend->ops->destroy(backend);
}

/* ---- The CPU beside the device. ---- */

/* A layer whose experts are all in memory, and some of which the device lacks: up to n of these. */
static uint32_t missing_of(struct tiers *t, uint32_t layer, uint32_t n, uint16_t *experts)
{
	uint32_t found = 0;
	uint64_t word;
	for (uint32_t e = 0; e < geometry.n_experts; e++) {
		assert_true(slots_peek(&t->rig.store.slots, layer, e, &word) != SLOT_NONE);
		if (found < n && device_find(&t->device.slots, layer, e) == SLOT_NONE)
			experts[found++] = (uint16_t)e;
	}
	return found;
}

static void begin_hybrid(struct tiers *t)
{
	begin(t, geometry.n_total, slots_min(&geometry) + 4);
	assert_int_equal(passes(t, 12, 8), 0);
	for (uint32_t l = 0; l < geometry.n_layers; l++)
		for (uint32_t e = 0; geometry.layers[l].moe && e < geometry.n_experts; e += 8)
			assert_int_equal(layer_of(t, l, e, 8), 0);
	t->rig.source->cpu_can = true;
}

static void assert_nothing_pinned(const struct tiers *t)
{
	assert_int_equal(t->q->ops->wait(t->q, t->q->ops->ticket(t->q)), 0);
	t->rig.source->ops->end(t->rig.source);
	const struct slots *slots = &t->rig.store.slots;
	for (uint32_t s = 0; s < slots->n_slots; s++)
		assert_int_equal(slot_pins(atomic_load(&slots->state[s])), 0);
	for (uint32_t s = 0; s < t->device.slots.n_slots; s++)
		assert_int_equal(slot_pins(atomic_load(&t->device.slots.state[s])), 0);
}

#define DEAR 1e15

static void greedy_leaves_to_the_cpu_what_it_does_sooner(void **state)
{
	(void)state;
	need_model();
	struct tiers t;
	uint16_t experts[6];
	uint32_t by_cpu, layer = first_layer();
	begin_hybrid(&t);
	struct expert_costs *costs = &t.rig.source->costs;
	struct device_header *header = t.device.slots.header;

	/* Off, whatever it costs. */
	*costs = (struct expert_costs){.cpu_expert_ns = 1, .gpu_expert_ns = DEAR};
	assert_int_equal(missing_of(&t, layer, 6, experts), 6);
	assert_int_equal(layer_with(&t, layer, experts, 6, &by_cpu), 0);
	assert_int_equal(by_cpu, 0);

	experts_cached_hybrid(t.rig.cached, BALANCE_GREEDY);
	assert_true(t.rig.source->cpu_wanted);
	/* Not measured: it is tried. */
	*costs = (struct expert_costs){0};
	assert_int_equal(missing_of(&t, layer, 6, experts), 6);
	assert_int_equal(layer_with(&t, layer, experts, 6, &by_cpu), 0);
	assert_int_equal(by_cpu, 6);
	assert_int_equal(t.rig.source->n_by_cpu, 6);
	/* The CPU is far slower than the link. */
	*costs = (struct expert_costs){.cpu_expert_ns = DEAR, .gpu_expert_ns = 1};
	assert_int_equal(missing_of(&t, layer, 6, experts), 6);
	assert_int_equal(layer_with(&t, layer, experts, 6, &by_cpu), 0);
	assert_int_equal(by_cpu, 0);
	/* It is fast, but would have to wait for the rows. */
	*costs = (struct expert_costs){
		.cpu_expert_ns = 1, .gpu_expert_ns = DEAR, .rows_ns = 1000 * DEAR};
	assert_int_equal(missing_of(&t, layer, 6, experts), 6);
	assert_int_equal(layer_with(&t, layer, experts, 6, &by_cpu), 0);
	assert_int_equal(by_cpu, 0);
	assert_int_equal(t.rig.source->n_by_cpu, 0);
	/* The pass cannot. */
	*costs = (struct expert_costs){.cpu_expert_ns = 1, .gpu_expert_ns = DEAR};
	t.rig.source->cpu_can = false;
	assert_int_equal(missing_of(&t, layer, 6, experts), 6);
	assert_int_equal(layer_with(&t, layer, experts, 6, &by_cpu), 0);
	assert_int_equal(by_cpu, 0);
	/* It can again, and nobody copies: what is in memory is computed there. */
	t.rig.source->cpu_can = true;
	t.rig.alive = false;
	uint64_t self_served = counter(&header->self_served);
	assert_int_equal(missing_of(&t, layer, 6, experts), 6);
	assert_int_equal(layer_with(&t, layer, experts, 6, &by_cpu), 0);
	assert_int_equal(by_cpu, 6);
	assert_int_equal(counter(&header->self_served), self_served);
	t.rig.alive = true;
	assert_int_equal(counter(&header->by_cpu), 12);
	assert_int_equal(atomic_load(&header->hybrid), BALANCE_GREEDY);
	assert_false(experts_cached_damaged(t.rig.cached));
	assert_nothing_pinned(&t);
	end(&t);
}

/* Which of these experts the device has; makes its slot LOADING, or READY again. */
static uint32_t set_loading(
	struct tiers *t, uint32_t layer, const uint16_t *experts, uint32_t n, bool loading)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t slot = device_find(&t->device.slots, layer, experts[i]);
		if (slot == SLOT_NONE)
			continue;
		atomic_store(
			&t->device.slots.state[slot], make_word(loading ? SLOT_LOADING : SLOT_READY,
							      0, 0, make_tag(layer, experts[i])));
		return i;
	}
	return n;
}

static void what_is_on_its_way_is_computed_if_that_is_sooner(void **state)
{
	(void)state;
	need_model();
	struct tiers t;
	uint16_t experts[LIMIT_EXPERTS];
	uint32_t by_cpu, layer = first_layer();
	begin_hybrid(&t);
	struct expert_costs *costs = &t.rig.source->costs;
	struct device_header *header = t.device.slots.header;
	experts_cached_hybrid(t.rig.cached, BALANCE_GREEDY);
	assert_int_equal(layer_of(&t, layer, 0, 8), 0);
	for (uint32_t e = 0; e < geometry.n_experts; e++)
		experts[e] = (uint16_t)e;
	assert_true(COMES_TRUE(atomic_load(&header->in_flight) == 0));
	uint32_t i = set_loading(&t, layer, experts, geometry.n_experts, true);
	assert_true(i < geometry.n_experts);

	/* The copy arrives before the CPU would have computed it: waited for, by the queue. */
	*costs = (struct expert_costs){.cpu_expert_ns = DEAR, .gpu_expert_ns = 1};
	atomic_store(&header->load_ns, 1);
	uint64_t waits = counter(&header->waits);
	assert_int_equal(layer_with(&t, layer, &experts[i], 1, &by_cpu), 0);
	assert_int_equal(by_cpu, 0);
	assert_int_equal(counter(&header->waits), waits + 1);

	/* It takes longer. */
	costs->cpu_expert_ns = 1;
	atomic_store(&header->load_ns, (uint64_t)DEAR);
	assert_int_equal(layer_with(&t, layer, &experts[i], 1, &by_cpu), 0);
	assert_int_equal(by_cpu, 1);
	assert_int_equal(counter(&header->waits), waits + 1);
	assert_int_equal(set_loading(&t, layer, experts, geometry.n_experts, false), i);
	assert_false(experts_cached_damaged(t.rig.cached));
	assert_nothing_pinned(&t);
	end(&t);
}

static bool on_device(struct tiers *t, uint32_t layer, const uint16_t *experts, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (device_find(&t->device.slots, layer, experts[i]) != SLOT_NONE)
			return true;
	return false;
}

static void greedy_fills_the_device_with_what_the_cpu_computes(void **state)
{
	(void)state;
	need_model();
	struct tiers t;
	uint16_t experts[6];
	uint32_t by_cpu, layer = first_layer();
	begin_hybrid(&t);
	experts_cached_hybrid(t.rig.cached, BALANCE_GREEDY);
	t.rig.source->costs = (struct expert_costs){.cpu_expert_ns = 1, .gpu_expert_ns = DEAR};
	assert_int_equal(missing_of(&t, layer, 6, experts), 6);
	assert_int_equal(layer_with(&t, layer, experts, 6, &by_cpu), 0);
	assert_int_equal(by_cpu, 6);
	assert_true(COMES_TRUE(on_device(&t, layer, experts, 6)));
	end(&t);
}

static void spac_streams_from_its_threshold_on(void **state)
{
	(void)state;
	need_model();
	struct tiers t;
	uint16_t experts[6];
	uint32_t by_cpu, layer = first_layer();
	begin_hybrid(&t);
	struct expert_costs *costs = &t.rig.source->costs;
	struct device_header *header = t.device.slots.header;
	experts_cached_hybrid(t.rig.cached, BALANCE_SPAC);
	for (int i = 0; i < 100; i++)
		experts_cached_drafted(t.rig.cached, (uint64_t)DEAR);

	/* Nobody has a utility yet: all is below any threshold. */
	*costs = (struct expert_costs){.cpu_expert_ns = DEAR, .gpu_expert_ns = 1};
	assert_int_equal(missing_of(&t, layer, 6, experts), 6);
	assert_int_equal(layer_with(&t, layer, experts, 6, &by_cpu), 0);
	assert_int_equal(by_cpu, 6);
	/* They have one of 1 now, from which on they are streamed if the CPU is the slower one ... */
	assert_false(on_device(&t, layer, experts, 6));
	*costs = (struct expert_costs){.cpu_expert_ns = 1, .gpu_expert_ns = DEAR};
	assert_int_equal(layer_with(&t, layer, experts, 6, &by_cpu), 0);
	assert_int_equal(by_cpu, 6);
	assert_int_equal(atomic_load(&header->tau[layer]), 2);
	*costs = (struct expert_costs){.cpu_expert_ns = DEAR, .gpu_expert_ns = 1};
	assert_int_equal(layer_with(&t, layer, experts, 6, &by_cpu), 0);
	assert_int_equal(by_cpu, 0);
	assert_int_equal(atomic_load(&header->tau[layer]), 1);
	/* Each layer has its own. */
	assert_int_equal(atomic_load(&header->tau[layer + 1]), 0);
	assert_nothing_pinned(&t);
	end(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(three_tiers_give_the_files_bytes),
		cmocka_unit_test(experts_are_where_passes_read_them),
		cmocka_unit_test(when_all_fit_their_places_are_settled),
		cmocka_unit_test(copies_that_fail_give_nothing_to_the_verifier),
		cmocka_unit_test(the_device_is_shared_out),
		cmocka_unit_test(the_drafter_gets_all_or_nothing),
		cmocka_unit_test(nobody_believes_rubbish_in_the_table),
		cmocka_unit_test(a_flag_that_others_wrote_is_found),
		cmocka_unit_test(a_wait_ends_whatever_the_state_says),
		cmocka_unit_test(greedy_leaves_to_the_cpu_what_it_does_sooner),
		cmocka_unit_test(what_is_on_its_way_is_computed_if_that_is_sooner),
		cmocka_unit_test(greedy_fills_the_device_with_what_the_cpu_computes),
		cmocka_unit_test(spac_streams_from_its_threshold_on),
	};
	log_init("test", 0);
	return cmocka_run_group_tests(tests, group_init, group_exit);
}
