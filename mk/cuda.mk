# The back end for NVIDIA's GPUs, where the toolkit's nvcc is: a shared object beside the programs, which outrider-model loads with
# --backend cuda. Nothing of it has run on a device yet: this shows that it compiles, and that no kernel spills registers.
NVCC ?= nvcc
CUDA_ARCHS ?= 80 86 89 90 100 120
CUDA_FLAGS := -x cu -std=c++17 -O3 -fmad=false -prec-div=true -prec-sqrt=true -ftz=false -D_GNU_SOURCE -I. -Ikernels/gpu/device \
	$(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) -Xptxas -v -Xcompiler -fPIC
SRC_cuda := $(wildcard kernels/gpu/steps/*.cc kernels/gpu/device/*.cc)

.PHONY: cuda
## make cuda       the back end for GPUs, with nvcc, for CUDA_ARCHS; a kernel that spills registers is an error
cuda: $(B)/outrider-backend-cuda.so
$(B)/outrider-backend-cuda.so: $(SRC_cuda:%.cc=$(B)/cuda/%.o) $(B)/libkernels.a $(B)/libbase.a
	$(call say,LD)
	$(Q)$(NVCC) -shared -cudart static -o $@ $(filter %.o,$^) -Xlinker --start-group $(filter %.a,$^) -Xlinker --end-group \
		-Xlinker --exclude-libs=ALL -lnuma
$(B)/cuda/%.o: %.cc $(wildcard kernels/gpu/kernels/*.cuh kernels/gpu/device/*.h kernels/gpu/steps/*.h kernels/gpu/*.h)
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(Q)$(NVCC) $(CUDA_FLAGS) -c -o $@ $< > $@.log 2>&1 || { cat $@.log; exit 1; }
	$(Q)! grep -B2 '[1-9][0-9]* bytes spill' $@.log || { rm -f $@; exit 1; }
