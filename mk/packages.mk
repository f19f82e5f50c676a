# The one list of Debian 12 packages. `make packages` installs what is missing, and is silent and offline
# when nothing is.
PACKAGES_BUILD := gcc g++ make pkg-config libc6-dev libzmq3-dev libprotobuf-c-dev protobuf-c-compiler \
	protobuf-compiler libsystemd-dev libinih-dev liburing-dev libjansson-dev libpcre2-dev libedit-dev \
	libncurses-dev libnuma-dev libutf8proc-dev libxxhash-dev libmicrohttpd-dev
PACKAGES_TEST := perl libcmocka-dev python3 spin clang libclang-rt-14-dev strace procps qemu-user zsh python3-jsonschema curl \
	python3-zmq python3-protobuf mypy
PACKAGES_BENCH := gnuplot-nox
PACKAGES_LINT := clang-format clang-tidy cppcheck
# Only for make check-nodes, which boots an emulated machine.
PACKAGES_NODES := qemu-system-x86 busybox-static cpio
# Only for bench/peers, which builds other engines to compare with.
PACKAGES_PEERS := cmake python3
PACKAGES := $(PACKAGES_BUILD) $(PACKAGES_TEST) $(PACKAGES_BENCH)

.PHONY: packages packages-lint packages-nodes packages-peers
packages:
	@sh tools/packages.sh $(PACKAGES)
packages-lint:
	@sh tools/packages.sh $(PACKAGES_LINT)
packages-nodes:
	@sh tools/packages.sh $(PACKAGES_NODES)
## make packages-peers  install what bench/peers/run.py needs in addition
packages-peers:
	@sh tools/packages.sh $(PACKAGES_PEERS)
