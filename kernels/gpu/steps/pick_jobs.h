/*
 * From rows of a pick to jobs for the kernels: what the parameters ask for at this position, and the
 * changes of logits, found on the host by the functions that the CPU uses.
 */
#pragma once

#include "kernels/gpu/kernels/pick_job.cuh"

/* What a pick row becomes. The changes lie in memory that the caller gives. */
struct pick_row_jobs {
	pick_job choice, score; /* flags 0: there is no such job */
};

/* Changes of a row's logits at most, whatever its history is. */
size_t pick_changes_max(uint32_t n_vocab);

/* Makes the jobs of rows[at]; all fields but logits, out and the address of `allowed`. Writes the
 * changes to changes[0..], which is the address that the device finds them at as well. */
void pick_jobs_of(const struct pick_row *rows, uint32_t at, uint32_t n_vocab,
	struct sampler_marks *marks, pick_change *changes, pick_row_jobs *jobs);

/* The row's result of what its jobs gave. out: of the choice, or of the score. */
void pick_result_of(const struct pick_row *row, const pick_out *choice, const pick_out *score,
	struct pick_result *result);
