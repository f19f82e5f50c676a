#include "client/cli/doctor/predict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double predict_kernel_share(const char *kernels)
{
	return strcmp(kernels, "avx512") == 0 ? 0.88 : strcmp(kernels, "avx2") == 0 ? 0.7 : 0.5;
}

/* The input of a prediction. */
struct predicting {
	const struct facts *facts;
	const struct measured *measured;
	double kernel_share;
	double share; /* of the experts in memory */
};

static double compute_s(
	const struct predicting *p, const struct facts *facts, uint32_t n, double *bytes)
{
	struct floor floor;

	if (facts_floor(facts, &p->measured->peaks, n, PREDICT_DEPTH, &floor) != 0)
		return -1;
	*bytes = floor.bytes;
	return floor.roofline_s / p->kernel_share +
	       facts->hand_overs * p->measured->hand_over_us / 1e6;
}

/* The time to read those of the distinct experts of n tokens that are not in memory. */
static double disk_s(const struct predicting *p, uint32_t n, double share)
{
	const struct facts *facts = p->facts;
	double rate = p->measured->disk.random_gb_s;
	double bytes = (1 - share) * facts->moe_layers * facts_distinct(facts, n) *
		       (double)facts->expert_bytes;

	return bytes > 0 && rate > 0 ? bytes / 1e9 / rate * PREDICT_DISK_TIMES : 0;
}

static double longer(double a, double b)
{
	return a > b ? a : b;
}

const char *predict_speed_text(double tokens_s, int digits, char out[static PREDICT_SPEED_TEXT])
{
	snprintf(out, PREDICT_SPEED_TEXT, "%.*e", digits - 1, tokens_s);
	double rounded = strtod(out, NULL);
	if (rounded >= 1000)
		snprintf(out, PREDICT_SPEED_TEXT, "%.0f", rounded);
	else
		snprintf(out, PREDICT_SPEED_TEXT, "%.*g", digits, tokens_s);
	return out;
}

double predict_break_even(uint32_t k, double cost)
{
	double low = 0, high = 1;

	if (cost >= k + 1)
		return 2;
	/* The tokens of a pass: 1 + p + p^2 + ... + p^K. */
	for (int i = 0; i < 50; i++) {
		double p = (low + high) / 2, tokens = 1, power = 1;

		for (uint32_t j = 0; j < k; j++) {
			power *= p;
			tokens += power;
		}
		if (tokens < cost)
			low = p;
		else
			high = p;
	}
	return high;
}

static void add_row(struct prediction *out, const struct predicting *p, double one_s, double share,
	uint64_t all_bytes, bool planned)
{
	double disk = disk_s(p, 1, share);

	if (out->n_rows == PREDICT_ROWS)
		return;
	out->rows[out->n_rows++] = (struct predict_row){
		.share = share,
		.bytes = (uint64_t)(share * (double)all_bytes),
		.compute_ms = 1e3 * one_s,
		.disk_ms = 1e3 * disk,
		.tokens_s = 1 / longer(one_s, disk),
		.planned = planned,
	};
}

/* Rows for all experts, three quarters, half, a quarter, the least, and the planned share. */
static void add_rows(struct prediction *out, const struct predicting *p, double one_s,
	uint64_t all_bytes, uint64_t least_bytes)
{
	double shares[] = {1, 0.75, 0.5, 0.25, (double)least_bytes / (double)all_bytes};
	double share = p->share;
	bool done = false;

	for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++) {
		bool same = share > shares[i] - 0.005 && share < shares[i] + 0.005;

		if (i > 0 && shares[i] >= shares[i - 1])
			continue; /* the least is more than a quarter */
		if (shares[i] < shares[4])
			continue;
		if (!done && !same && share > shares[i]) {
			add_row(out, p, one_s, share, all_bytes, true);
			done = true;
		}
		add_row(out, p, one_s, shares[i], all_bytes, same);
		done |= same;
	}
}

static int add_drafts(
	struct prediction *out, const struct predicting *p, const struct facts *draft, double one_s)
{
	static const uint32_t ks[PREDICT_DRAFTS] = {1, 3, 7};
	double bytes, draft_s = 0;

	/* The drafter has one thread, which reads as fast as one thread can. */
	if (draft) {
		double all = compute_s(p, draft, 1, &bytes);

		if (all < 0)
			return -ENOMEM;
		draft_s = all * p->measured->peaks.read_gb_s / p->measured->counts[0].gb_s;
	}
	out->draft_token_ms = 1e3 * draft_s;
	for (int i = 0; i < PREDICT_DRAFTS; i++) {
		double pass = compute_s(p, p->facts, ks[i] + 1, &bytes);

		if (pass < 0)
			return -ENOMEM;
		pass = longer(pass, disk_s(p, ks[i] + 1, p->share));
		double cost = (pass + ks[i] * draft_s) / one_s;
		out->drafts[i] =
			(struct predict_draft){ks[i], cost, predict_break_even(ks[i], cost)};
	}
	return 0;
}

int predict(const struct facts *facts, const struct facts *draft, const struct measured *measured,
	const char *kernels, double share, uint64_t all_bytes, uint64_t least_bytes,
	struct prediction *out)
{
	const struct predicting p = {facts, measured, predict_kernel_share(kernels), share};

	*out = (struct prediction){0};
	double one_s = compute_s(&p, facts, 1, &out->token_bytes);

	if (one_s < 0)
		return -ENOMEM;
	double planned_s = longer(one_s, disk_s(&p, 1, share));
	out->tokens_s = 1 / one_s;
	out->expected_tokens_s = 1 / planned_s;
	if (all_bytes > 0)
		add_rows(out, &p, one_s, all_bytes, least_bytes);
	return add_drafts(out, &p, draft, planned_s);
}
