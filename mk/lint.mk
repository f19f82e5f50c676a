LINT_SRC := $(shell git ls-files '*.c' '*.h' 2>/dev/null)
.PHONY: lint format
# ctuuninitvar: a struct that the callee fills in is reported as uninitialised.
# clang-tidy leaves the tests out: it does not know that a failed assertion does not return.
## make lint       clang-format, cppcheck and clang-tidy, all clean
lint: packages packages-lint $(B)/gen/proto/.stamp
	@clang-format --dry-run -Werror $(LINT_SRC)
	@cppcheck --quiet --std=c11 --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
		--suppress=missingIncludeSystem --suppress=ctuuninitvar --library=tools/cppcheck.cfg -j2 -I. $(filter %.c,$(LINT_SRC))
	@printf '%s\n' $(filter-out kernels/cpu/avx% tests/%,$(filter %.c,$(LINT_SRC))) | xargs -P2 -n8 sh tools/tidy.sh $(B)/gen
## make format     rewrite the sources with clang-format
format:
	clang-format -i $(LINT_SRC)
