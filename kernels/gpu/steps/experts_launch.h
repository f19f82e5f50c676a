/* Launches of the kernels of experts.cuh, by the type of the weights. n experts, of which none has
 * more than `most` pairs. */
#pragma once

#include "kernels/gpu/kernels/expert_args.cuh"
#include "kernels/gpu/runtime.h"

void experts_launch_in(struct stream *stream, enum tensor_type type, const experts_args *a,
	unsigned n, unsigned most);
/* matrix: enum expert_matrix */
void experts_launch_one(struct stream *stream, enum tensor_type type, const experts_args *a,
	unsigned matrix, unsigned n, unsigned most);
void experts_launch_plain(struct stream *stream, enum tensor_type type, const experts_args *a,
	unsigned matrix, unsigned n, unsigned most);
void experts_launch_find(struct stream *stream, const find_args *a);
void experts_launch_activate(
	struct stream *stream, const experts_args *a, unsigned n, unsigned most);
