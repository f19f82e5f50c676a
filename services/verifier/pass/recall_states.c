/* Where states and windows lie while the disk's thread reads and writes them: see recall.h. */
#include "services/verifier/pass/recall.h"

#include "services/verifier/pass/engine.h"
#include "shared/base/round.h"
#include "shared/model/kv/kv_content.h"

enum { WRITTEN, READ, PLACES };

static size_t place_bytes(uint64_t state_bytes)
{
	return (size_t)round_lines(state_bytes);
}

uint64_t recall_states_bytes(uint64_t state_bytes)
{
	return PLACES * place_bytes(state_bytes);
}

uint64_t recall_state_bytes(const struct kv_layout *layout)
{
	return layout->windows.n_layers > 0 ? kv_windows_page_bytes(layout)
					    : recurrent_state_bytes(&layout->states);
}

uint32_t recall_states_of(const struct kv_layout *layout)
{
	return layout->windows.n_layers > 0 ? kv_windows_span(layout) : 1;
}

static bool are_windows(const struct engine *engine)
{
	return engine->kv.layout.windows.n_layers > 0;
}

int recall_states_open(struct engine *engine, struct error *err)
{
	struct kv *kv = &engine->kv;
	struct backend *backend = kv->store.backend;
	size_t bytes = (size_t)recall_states_bytes(recall_state_bytes(&kv->layout));

	if (engine->disk.disk == NULL || kv->snapshots.n == 0 ||
		(kv->store.host != NULL && !are_windows(engine)))
		return 0;
	return backend->ops->alloc(backend, bytes, BUFFER_HOST, &engine->disk.states, err);
}

bool recall_states_in_place(const struct engine *engine)
{
	return engine->disk.states.backend == NULL;
}

static unsigned char *in_store(const struct engine *engine, uint32_t snapshot)
{
	return engine->kv.store.host + snapshots_place(&engine->kv, snapshot);
}

static struct place place_of(struct engine *engine, int which)
{
	return (struct place){
		&engine->disk.states,
		(size_t)which * place_bytes(recall_state_bytes(&engine->kv.layout)),
	};
}

static unsigned char *host_of(struct engine *engine, int which)
{
	return engine->disk.states.host + place_of(engine, which).offset;
}

unsigned char *recall_state_to_write(struct engine *engine, uint32_t page)
{
	struct kv *kv = &engine->kv;

	if (recall_states_in_place(engine))
		return in_store(engine, snapshots_find(kv, page));
	if (engine->disk.state_written)
		return NULL;
	if (are_windows(engine))
		kv_window_read(kv, page, host_of(engine, WRITTEN));
	else if (!snapshots_copy_out(kv, snapshots_find(kv, page), place_of(engine, WRITTEN)))
		return NULL;
	engine->disk.state_written = true;
	return host_of(engine, WRITTEN);
}

void recall_state_written(struct engine *engine)
{
	engine->disk.state_written = false;
}

unsigned char *recall_state_to_read(struct engine *engine, uint32_t snapshot)
{
	if (recall_states_in_place(engine))
		return in_store(engine, snapshot);
	if (engine->disk.state_read)
		return NULL;
	engine->disk.state_read = true;
	return host_of(engine, READ);
}

bool recall_state_arrived(struct engine *engine, uint32_t snapshot, uint32_t page)
{
	engine->disk.state_read = false;
	if (are_windows(engine))
		return kv_window_write(&engine->kv, page, host_of(engine, READ)) == 0;
	return recall_states_in_place(engine) ||
	       snapshots_copy_in(&engine->kv, snapshot, place_of(engine, READ));
}

void recall_state_dropped(struct engine *engine)
{
	engine->disk.state_read = false;
}
