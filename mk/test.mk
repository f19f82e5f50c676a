# Unit tests: tests/DIR/test_X.c, a cmocka program each, linked against the libraries of DIR.
# Integration tests: tests/integration/*.t, plain TAP, start the real processes.
TEST_SRC := $(wildcard tests/*/test_*.c tests/gpu/test_*.cc)
TEST_BIN := $(patsubst tests/%,$(B)/tests/%,$(basename $(TEST_SRC)))
TLIB_base := base
TLIB_ipc := ipc base proto
TLIB_kernels := kernels base
TLIB_gpu := backend-simt kernels base
TLIB_model := model kernels base
TLIB_grammar := model kernels base
TLIB_calls := model kernels base
TLIB_spec := spec model kernels ipc base proto
TLIB_verifier := outrider-verifier backend-simt knobs $(TLIB_spec)
TLIB_drafter := outrider-drafter backend-simt knobs $(TLIB_spec)
TLIB_expert-cache := outrider-expert-cache backend-simt knobs $(TLIB_spec)
TLIB_policy-controller := outrider-policy knobs $(TLIB_spec)
TLIB_client := client ipc base proto
TLIB_doctor := outrider outrider-expert-cache outrider-verifier backend-simt measure summary client knobs $(TLIB_spec)
TLIB_gateway := outrider-gateway base
TLIB_bench := outrider-bench outrider-model backend-simt outrider-drafter outrider-expert-cache outrider-policy measure client knobs $(TLIB_spec)

define unit_test
$(B)/tests/$(2)/$(1): $(B)/obj/tests/$(2)/$(1).o $(foreach l,$(TLIB_$(2)),$(B)/lib$(l).a)
	@mkdir -p $$(@D)
	$$(call say,LD)
	$$(Q)$(CC) $(LDFLAGS) -o $$@ $$< -Wl,--start-group $(foreach l,$(TLIB_$(2)),$(B)/lib$(l).a) -Wl,--end-group \
		-lcmocka $(LDLIBS)
endef
$(foreach t,$(TEST_SRC),$(eval $(call unit_test,$(basename $(notdir $(t))),$(notdir $(patsubst %/,%,$(dir $(t)))))))

# Fuzz targets run over their seed corpora in `make check`; `make fuzz` runs them with libFuzzer.
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ := $(basename $(notdir $(FUZZ_SRC)))
FUZZ_SECONDS ?= 60
FUZZ_LIBS := outrider-gateway summary outrider-bench outrider-model backend-simt outrider-verifier outrider-drafter outrider-expert-cache outrider-policy measure client knobs spec model kernels ipc base proto
$(B)/fuzz-replay/%: $(B)/obj/tests/fuzz/%.o $(B)/obj/tests/fuzz/replay.o $(FUZZ_LIBS:%=$(B)/lib%.a)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LIBS_outrider-gateway) $(LDLIBS)
.PHONY: fuzz
## make fuzz       60 s of libFuzzer under ASan and UBSan for everything that reads untrusted bytes
fuzz: packages
	@B=$(B)-fuzz PKGS="$(PKGS) libmicrohttpd" FUZZ_LIBS="$(FUZZ_LIBS)" sh tests/fuzz/run.sh $(FUZZ_SECONDS) $(FUZZ)

.SECONDARY:
TESTS_SH := $(wildcard tests/*/*.t)
# The traffic that integration tests send.
$(B)/tests/swarm: $(B)/obj/tests/integration/swarm.o $(B)/libclient.a $(B)/libipc.a $(B)/libbase.a $(B)/libproto.a
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LDLIBS)
$(B)/tests/knob-%: $(B)/obj/tests/integration/knob_%.o $(B)/libipc.a $(B)/libbase.a $(B)/libproto.a
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LDLIBS)
# Documents by chance, for tests/grammar/generate.t.
$(B)/tests/grammar-sample: $(B)/obj/tests/grammar/sample.o $(TLIB_grammar:%=$(B)/lib%.a)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(LDFLAGS) -o $@ $< -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(LDLIBS)
# The faults that they make, and the allocations and calls that they count. Never sanitized: they are loaded before everything else.
$(B)/tests/%.so: tests/integration/%.c
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(CPPFLAGS) $(filter-out -fsanitize=% -fno-sanitize%,$(CFLAGS)) -shared -o $@ $< -ldl
.PHONY: check check-unit tests
## make check      install packages, build and run every test (SAN=address|undefined|thread for a sanitizer)
tests: programs $(B)/tests/swarm $(B)/tests/knob-storm $(B)/tests/knob-process $(B)/tests/grammar-sample $(B)/tests/faults.so $(B)/tests/allocations.so $(B)/tests/peer_calls.so \
	$(TEST_BIN) $(FUZZ:%=$(B)/fuzz-replay/%)
# Three tests run at a time, also on two CPUs: many of them mostly wait for processes. The longest begin first, so that none of them runs alone at the end.
TEST_JOBS ?= 3
LONGEST := tests/spin/run.t tests/integration/lossless.t
# Where NVIDIA's toolkit is, the GPU's back end is compiled for every architecture: a warning or a spill fails.
CHECK_CUDA = $(if $(SAN),,$(if $(shell command -v $(NVCC)),cuda))
check: packages
	@$(MAKE) --no-print-directory -j2 tests $(CHECK_CUDA)
	@CMOCKA_MESSAGE_OUTPUT=TAP B=$(B) SAN=$(SAN) prove $(PROVE_FLAGS) -j $(TEST_JOBS) --timer --failures --exec 'sh tests/run' \
		$(LONGEST) $(TEST_BIN) $(filter-out $(LONGEST),$(TESTS_SH))
## make check-long the slow sweeps, of which make check has thinner versions
LONG := tests/integration/sessions.t tests/integration/gateway-load.t tests/integration/simt.t
.PHONY: check-long
check-long: packages
	@$(MAKE) --no-print-directory -j2 tests
	@OUTRIDER_TEST_LONG=1 B=$(B) SAN=$(SAN) prove $(PROVE_FLAGS) --timer --failures --exec 'sh tests/run' $(LONG)
## make check-unit the unit tests alone
check-unit: packages
	@$(MAKE) --no-print-directory -j2 $(TEST_BIN)
	@CMOCKA_MESSAGE_OUTPUT=TAP B=$(B) SAN=$(SAN) prove --failures --exec 'sh tests/run' $(TEST_BIN)
.PHONY: check-nodes
## make check-nodes the four processes on an emulated machine with two memory nodes: minutes
check-nodes: packages packages-nodes
	@$(MAKE) --no-print-directory -j2 programs
	@B=$(B) tests/nodes/check.py
