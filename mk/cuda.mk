# The kernels for NVIDIA's GPUs, where the toolkit's nvcc is. Nothing of it has run on a device yet, and there is no runtime for one:
# this shows that the sources compile as device code, and that no kernel spills registers.
NVCC ?= nvcc
CUDA_ARCHS ?= 80 86 89 90 100 120
CUDA_FLAGS := -x cu -std=c++17 -O3 -fmad=false -prec-div=true -prec-sqrt=true -ftz=false -D_GNU_SOURCE -I. -Ikernels/gpu/device \
	$(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) -Xptxas -v
SRC_cuda := $(wildcard kernels/gpu/steps/*.cc)

.PHONY: cuda
## make cuda       compile the GPU's kernels with nvcc, for CUDA_ARCHS; a kernel that spills registers is an error
cuda: $(SRC_cuda:%.cc=$(B)/cuda/%.o)
$(B)/cuda/%.o: %.cc $(wildcard kernels/gpu/kernels/*.cuh kernels/gpu/device/*.h kernels/gpu/steps/*.h kernels/gpu/*.h)
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(Q)$(NVCC) $(CUDA_FLAGS) -c -o $@ $< > $@.log 2>&1 || { cat $@.log; exit 1; }
	$(Q)! grep -B2 '[1-9][0-9]* bytes spill' $@.log || { rm -f $@; exit 1; }
