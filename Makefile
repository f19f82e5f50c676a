# Outrider. `make help` lists the targets; README.md says what it is.
VERSION := 0.1.0
PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
# The build tree; sanitizer builds get their own.
SAN ?=
B ?= build$(if $(SAN),-$(SAN))

all: programs

include mk/packages.mk
include mk/flags.mk
include mk/proto.mk
include mk/python.mk
include mk/programs.mk
include mk/cuda.mk
include mk/test.mk
include mk/lint.mk
include mk/install.mk

.PHONY: all help clean demo bench
help:
	@sed -n 's/^## //p' mk/*.mk Makefile
## make            build everything into build/ (after make packages)
## make demo       install packages, build, and show it working on the shipped model
demo: packages
	@$(MAKE) --no-print-directory -s -j2 programs
	@B=$(B) sh tools/demo.sh
## make bench      run the benchmarks and write bench/results/: about an hour
bench: packages
	@$(MAKE) --no-print-directory -j2 programs $(B)/tests/swarm
	@B=$(B) sh bench/run.sh
clean:
	rm -rf build build-address build-undefined build-thread build-fuzz
