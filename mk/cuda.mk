# The back end for NVIDIA's GPUs, where the toolkit's nvcc is: a shared object that the programs load for a GPU. Nothing of it has
# run on a device yet: this shows that it compiles, and that no kernel spills registers.
NVCC ?= nvcc
CUDA_ARCHS ?= 80 86 89 90 100 120
# The code of all architectures comes from the PTX of the oldest, because the kernels use nothing newer, and the compiler's first
# half then runs once for all. The PTX is there too: the driver compiles it for GPUs that are newer still.
CUDA_OLDEST := $(firstword $(shell printf '%s\n' $(CUDA_ARCHS) | sort -n))
CUDA_FLAGS := -x cu -std=c++17 -O3 -fmad=false -prec-div=true -prec-sqrt=true -ftz=false -D_GNU_SOURCE -I. -Ikernels/gpu/device \
	$(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(CUDA_OLDEST),code=sm_$(a)) \
	-gencode arch=compute_$(CUDA_OLDEST),code=compute_$(CUDA_OLDEST) \
	-Xptxas -v -Xcompiler -fPIC
SRC_cuda := $(wildcard kernels/gpu/steps/*.cc kernels/gpu/device/*.cc)

# The programs and the shared object agree on these headers. Each has the checksum of those that it was compiled with, and a
# shared object with another one is refused.
INTERFACE_FILES := kernels/backend.h kernels/steps.h kernels/pick.h kernels/sampler.h kernels/tensor.h kernels/kv_format.h \
	kernels/kernels.h kernels/gpu/backend.h shared/base/error.h shared/base/limits.h
BACKEND_INTERFACE := $(VERSION)-$(firstword $(shell cat $(INTERFACE_FILES) | cksum))
$(B)/obj/kernels/gpu/load.o: CPPFLAGS += -DBACKEND_INTERFACE='"$(BACKEND_INTERFACE)"'
$(B)/obj/kernels/gpu/load.o: $(INTERFACE_FILES)
$(B)/cuda/kernels/gpu/steps/backend.o: CUDA_FLAGS += -DBACKEND_INTERFACE='"$(BACKEND_INTERFACE)"'
$(B)/cuda/kernels/gpu/steps/backend.o: $(INTERFACE_FILES)

# What the objects are compiled with: for other architectures, say, they are compiled again.
CUDA_STAMP := $(B)/cuda/.flags
ifneq ($(file <$(CUDA_STAMP)),$(NVCC) $(CUDA_FLAGS))
.PHONY: other-cuda-flags
$(CUDA_STAMP): other-cuda-flags
endif
$(CUDA_STAMP):
	@mkdir -p $(@D)
	@printf '%s\n' '$(NVCC) $(CUDA_FLAGS)' > $@

.PHONY: cuda
## make cuda       the back end for GPUs, with nvcc, for CUDA_ARCHS; a warning, or a kernel that spills registers, is an error
cuda: $(B)/outrider-backend-cuda.so
$(B)/outrider-backend-cuda.so: $(SRC_cuda:%.cc=$(B)/cuda/%.o) $(B)/libkernels.a $(B)/libbase.a
	$(call say,LD)
	$(Q)$(NVCC) -shared -cudart static -o $@ $(filter %.o,$^) -Xlinker --start-group $(filter %.a,$^) -Xlinker --end-group \
		-Xlinker --exclude-libs=ALL -lnuma
.PHONY: gpu-check gpu-bench gpu-there gpu-toolkit
# Beside the tests' programs, where they look for it.
$(B)/tests/gpu/outrider-backend-cuda.so: cuda
	@mkdir -p $(@D)
	@ln -sf ../../outrider-backend-cuda.so $@
# First of all, because compiling takes minutes.
gpu-there:
	@python3 -c "import ctypes; raise SystemExit(ctypes.CDLL('libcuda.so.1').cuInit(0))" 2>/dev/null || \
		{ echo "there is no GPU here: NVIDIA's driver (libcuda.so.1) is not installed, or finds none" >&2; exit 77; }
gpu-toolkit: gpu-there
	@command -v $(NVCC) >/dev/null || { echo "$(NVCC) is not there: install NVIDIA's toolkit (README.md says how), or set NVCC" >&2; exit 77; }
## make gpu-check  test the back end for GPUs on a device: its kernels, golden models, exported memory
gpu-check: gpu-toolkit
	@$(MAKE) --no-print-directory programs cuda $(B)/tests/gpu/outrider-backend-cuda.so \
		$(patsubst tests/%.c,$(B)/tests/%,$(wildcard tests/gpu/test_*.c))
	@B=$(B) tools/gpu_check.sh
## make gpu-bench  measure products and a model on a device; writes bench/results/gpu-*.txt
gpu-bench: gpu-toolkit
	@$(MAKE) --no-print-directory programs cuda
	@B=$(B) python3 bench/run.py gpu
$(B)/cuda/%.o: %.cc $(CUDA_STAMP)
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(Q)$(NVCC) $(CUDA_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $< > $@.log 2>&1 || { cat $@.log; exit 1; }
	$(Q)! grep -B2 '[1-9][0-9]* bytes spill\|warning' $@.log || { rm -f $@; exit 1; }
-include $(shell find $(B)/cuda -name '*.d' 2>/dev/null)
