/* Where states lie while the disk's thread reads and writes them: see recall.h. */
#include "services/verifier/pass/recall.h"

#include "services/verifier/pass/engine.h"
#include "shared/base/round.h"

enum { WRITTEN, READ, PLACES };

static size_t place_bytes(uint64_t state_bytes)
{
	return (size_t)round_lines(state_bytes);
}

uint64_t recall_states_bytes(uint64_t state_bytes)
{
	return PLACES * place_bytes(state_bytes);
}

int recall_states_open(struct engine *engine, struct error *err)
{
	struct kv *kv = &engine->kv;
	struct backend *backend = kv->store.backend;

	if (engine->disk.disk == NULL || kv->snapshots.n == 0 || kv->store.host != NULL)
		return 0;
	return backend->ops->alloc(backend, (size_t)recall_states_bytes(kv->snapshots.bytes),
		BUFFER_HOST, &engine->disk.states, err);
}

static bool is_seen(const struct engine *engine)
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
		&engine->disk.states, (size_t)which * place_bytes(engine->kv.snapshots.bytes)};
}

static unsigned char *host_of(struct engine *engine, int which)
{
	return engine->disk.states.host + place_of(engine, which).offset;
}

unsigned char *recall_state_to_write(struct engine *engine, uint32_t snapshot)
{
	if (is_seen(engine))
		return in_store(engine, snapshot);
	if (engine->disk.state_written ||
		!snapshots_copy_out(&engine->kv, snapshot, place_of(engine, WRITTEN)))
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
	if (is_seen(engine))
		return in_store(engine, snapshot);
	if (engine->disk.state_read)
		return NULL;
	engine->disk.state_read = true;
	return host_of(engine, READ);
}

bool recall_state_arrived(struct engine *engine, uint32_t snapshot)
{
	engine->disk.state_read = false;
	return is_seen(engine) || snapshots_copy_in(&engine->kv, snapshot, place_of(engine, READ));
}

void recall_state_dropped(struct engine *engine)
{
	engine->disk.state_read = false;
}
