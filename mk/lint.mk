LINT_SRC := $(shell git ls-files '*.c' '*.h' 2>/dev/null)
.PHONY: lint format
## make lint       clang-format, cppcheck and clang-tidy, all clean
lint: packages packages-lint $(B)/gen/proto/.stamp
	clang-format --dry-run -Werror $(LINT_SRC)
	cppcheck --quiet --std=c11 --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
		--suppress=missingIncludeSystem -j2 -I. -I$(B)/gen $(filter %.c,$(LINT_SRC))
	printf '%s\n' $(filter-out kernels/cpu/avx%,$(filter %.c,$(LINT_SRC))) | \
		xargs -P2 -n8 sh -c 'clang-tidy --quiet --warnings-as-errors="*" "$$@" -- $(CPPFLAGS) -std=gnu11 2>/dev/null' tidy
## make format     rewrite the sources with clang-format
format:
	clang-format -i $(LINT_SRC)
