#include "shared/model/kv/kv_sums.h"

#include "shared/base/checksum.h"
#include "shared/model/kv/kv.h"

static_assert(KV_PAGE_CELLS == KV_SUMS * KV_TURN, "a page is whole turns");

static bool is_full(const int32_t *positions)
{
	for (int i = 0; i < KV_TURN; i++)
		if (positions[i] < 0)
			return false;
	return true;
}

static uint64_t sum_of(const struct kv *kv, uint64_t owner, uint32_t turn, const int32_t *positions)
{
	uint64_t sum = checksum(owner, positions, KV_TURN * sizeof(*positions));
	size_t k_bytes = KV_TURN * kv->k_bytes, v_bytes = KV_TURN * kv->v_bytes;

	for (uint32_t layer = 0;
		kv->store.host && layer < kv->layout.n_layers && !kv_own_window(kv, layer);
		layer++) {
		for (uint32_t head = 0; head < kv->layout.n_kv_heads; head++) {
			const unsigned char *k = kv->store.host + kv_k(kv, layer, head);
			const unsigned char *v = kv->store.host + kv_v(kv, layer, head);

			sum = checksum(sum, k + turn * k_bytes, k_bytes);
			/* Otherwise the values lie in the keys. */
			if (kv->layout.v_dim != 0)
				sum = checksum(sum, v + turn * v_bytes, v_bytes);
		}
	}
	return sum | 1; /* never 0, which means "none yet" */
}

static _Atomic uint64_t *word_of(const struct kv *kv, uint32_t turn)
{
	return &kv->meta[turn / KV_SUMS].sums[turn % KV_SUMS];
}

void kv_sums_commit(struct kv *kv, uint64_t owner, const uint32_t *cells, uint32_t n)
{
	for (uint32_t i = 0; i < n && kv->checked; i++) {
		uint32_t turn = cells[i] / KV_TURN;
		const int32_t *positions = &kv->position[turn * KV_TURN];

		/* Once for a turn, after the last of several cells in it. */
		if ((i + 1 < n && cells[i + 1] / KV_TURN == turn) || !is_full(positions))
			continue;
		/* Release pairs with the acquire in kv_sums_hold. */
		atomic_store_explicit(word_of(kv, turn), sum_of(kv, owner, turn, positions),
			memory_order_release);
	}
}

bool kv_sums_hold(const struct kv *kv, uint64_t owner, uint32_t turn, const int32_t *positions)
{
	if (!kv->checked)
		return true;
	if (!is_full(positions))
		return kv->states.layout.n_layers > 0;
	return atomic_load_explicit(word_of(kv, turn), memory_order_acquire) ==
	       sum_of(kv, owner, turn, positions);
}
