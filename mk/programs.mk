# Libraries are one per folder, programs one per main; a folder's *.c, with those of its rooms, is its library or program.
LIBS := base ipc model spec knobs kernels measure client summary
sources = $(sort $(wildcard $(1)/*.c $(1)/*/*.c $(1)/*/*/*.c))
SRC_base := $(call sources,shared/base)
SRC_ipc := $(call sources,shared/ipc)
SRC_model := $(call sources,shared/model)
SRC_spec := $(call sources,shared/spec)
# The services' tables of settings, which outriderctl knows too.
SRC_knobs := $(call sources,services/knobs)
SRC_kernels := $(call sources,kernels)
ifneq ($(findstring x86_64,$(shell $(CC) -dumpmachine)),x86_64)
SRC_kernels := $(filter-out kernels/cpu/avx%,$(SRC_kernels))
endif
# What the machine gives, measured, and the least time of a pass.
SRC_measure := $(call sources,shared/measure)
SRC_client := $(call sources,client/sdk)
# What `outrider status` and `outriderctl status` both print.
SRC_summary := $(call sources,client/summary)

PROGRAMS := outrider-verifier outrider-drafter outrider-expert-cache outrider-policy outrider-gateway \
	outrider outriderctl outrider-model outrider-bench
DIR_outrider-verifier := services/verifier
DIR_outrider-drafter := services/drafter
DIR_outrider-expert-cache := services/expert-cache
DIR_outrider-policy := services/policy-controller
DIR_outrider-gateway := services/gateway
DIR_outrider := client/cli
DIR_outriderctl := admin
DIR_outrider-model := client/model
DIR_outrider-bench := bench/src
LIBS_outrider-gateway := -lmicrohttpd
# How the expert-cache and the verifier share memory out, and how a file is read, which outrider doctor asks.
LIBS_outrider = -ledit $(B)/liboutrider-expert-cache.a $(B)/liboutrider-verifier.a
$(B)/outrider: $(B)/liboutrider-expert-cache.a $(B)/liboutrider-verifier.a
LIBS_outriderctl := -lncursesw -ltinfo
# The engine without services, which outrider-bench model measures; the cache's policies, which it replays; the controller
# and the n-gram drafter, which outrider-bench policy simulates; hints from history, which it records: the drafter's, of what
# the verifier tells.
LIBS_outrider-bench = $(B)/liboutrider-model.a $(B)/liboutrider-expert-cache.a $(B)/liboutrider-policy.a $(B)/liboutrider-drafter.a \
	$(B)/liboutrider-verifier.a
$(B)/outrider-bench: $(LIBS_outrider-bench)

objects = $(patsubst %.c,$(B)/obj/%.o,$(1))
define library
$(B)/lib$(1).a: $(call objects,$(SRC_$(1)))
	@rm -f $$@; $(AR) rcs $$@ $$^
endef
$(foreach l,$(LIBS),$(eval $(call library,$(l))))
ARCHIVES := $(LIBS:%=$(B)/lib%.a) $(B)/libbackend-simt.a $(B)/libproto.a

# The GPU's back end over the emulation.
SRC_simt := $(wildcard kernels/gpu/emulated/*.cc kernels/gpu/steps/*.cc)
$(B)/libbackend-simt.a: $(SRC_simt:%.cc=$(B)/obj/%.o)
	@rm -f $@; $(AR) rcs $@ $^
$(B)/obj/kernels/gpu/%.o $(B)/obj/tests/gpu/%.o: CXXFLAGS += -Ikernels/gpu/emulated

define program
SRC_$(1) := $(call sources,$(DIR_$(1)))
# A service's own library, without main, for its unit tests.
$(B)/lib$(1).a: $(call objects,$(filter-out %/main.c,$(call sources,$(DIR_$(1)))))
	@rm -f $$@; $(AR) rcs $$@ $$^
$(B)/$(1): $(call objects,$(DIR_$(1))/main.c) $(B)/lib$(1).a $(ARCHIVES)
	$$(call say,LD)
	$$(Q)$(CC) $(LDFLAGS) -o $$@ $(call objects,$(DIR_$(1))/main.c) -Wl,--start-group $(B)/lib$(1).a $(ARCHIVES) \
		$$(LIBS_$(1)) -Wl,--end-group $(LDLIBS)
endef
$(foreach p,$(PROGRAMS),$(eval $(call program,$(p))))

.PHONY: programs
programs: $(PROGRAMS:%=$(B)/%) $(B)/liboutrider.so

# The SDK as a shared object: only what outrider.h declares is exported.
$(B)/liboutrider.so: $(call objects,$(SRC_client)) $(B)/libbase.a $(B)/libipc.a $(B)/libproto.a client/sdk/liboutrider.map
	$(call say,LD)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-z,defs -Wl,-soname,liboutrider.so.0 -Wl,--version-script=client/sdk/liboutrider.map \
		-o $@ $(call objects,$(SRC_client)) -Wl,--start-group $(B)/libipc.a $(B)/libbase.a $(B)/libproto.a \
		-Wl,--end-group $(SDK_LIBS)

ISA_AVX2 := -mavx2 -mfma -mf16c
ISA_AVX512 := $(ISA_AVX2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
# Under a sanitizer unrolled kernels take minutes to compile; and where each variable is at each place of them, for a debugger,
# twice the time and 1 GB of memory.
ISA_OPT := $(if $(SAN),-O1 -DKERNELS_ROLLED,-O3 -fno-var-tracking)
$(B)/obj/kernels/cpu/avx2%.o: CFLAGS += $(ISA_AVX2) $(ISA_OPT)
$(B)/obj/kernels/cpu/avx512%.o: CFLAGS += $(ISA_AVX512) $(ISA_OPT)

# They are part of the program.
$(B)/obj/services/gateway/page.o: $(wildcard services/gateway/page/*)

$(B)/obj/%.o: %.c $(B)/gen/proto/.stamp $(FLAGS_STAMP)
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<
$(B)/obj/%.o: %.cc $(B)/gen/proto/.stamp $(FLAGS_STAMP)
	@mkdir -p $(@D)
	$(call say,CXX)
	$(Q)$(CXX) $(CPPFLAGS) $(CXXFLAGS) -MMD -MP -c -o $@ $<
-include $(shell find $(B)/obj -name '*.d' 2>/dev/null)
