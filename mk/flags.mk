CC ?= gcc
OPT ?= -O2 -g
WARN := -Wall -Wextra -Wshadow -Wconversion -Werror
PKGS := libzmq libprotobuf-c libsystemd inih liburing jansson libpcre2-8 libutf8proc numa libxxhash
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lpthread -lm
# Of the SDK, whose users need nothing else.
SDK_LIBS := $(shell pkg-config --libs libzmq libprotobuf-c 2>/dev/null) -lpthread
# -ffp-contract=off: the compiler must not fuse what numerics.md says are two roundings.
CPPFLAGS += -D_GNU_SOURCE -I. -I$(B)/gen $(PKG_CFLAGS)
CFLAGS += -std=gnu11 $(OPT) $(WARN) -ffp-contract=off -fno-math-errno \
	-fstack-protector-strong -pthread -fPIC
# C++ only for the GPU's back end, whose kernels are written in it, and without its library. Names of structs and of functions
# may be the same, as in C, hence no plain -Wshadow. clang has no milder one.
CXX ?= g++
CXXFLAGS += -std=c++17 $(OPT) $(WARN:-Wshadow=$(if $(findstring clang,$(CXX)),,-Wshadow=local)) -ffp-contract=off -fno-math-errno -fno-exceptions -fno-rtti \
	-fno-threadsafe-statics -fstack-protector-strong -pthread -fPIC
CFLAGS += -DOUTRIDER_VERSION='"$(VERSION)"' -DOUTRIDER_SYSCONFDIR='"$(SYSCONFDIR)"'
LDLIBS += $(PKG_LIBS)
ifneq ($(SAN),)
CFLAGS += -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all
CXXFLAGS += -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all
LDFLAGS += -fsanitize=$(SAN)
endif
# The thread sanitizer does not know fences. Those of ours order what two processes do, which it does not see either.
ifneq ($(filter thread,$(SAN)),)
CFLAGS += -Wno-tsan
endif
# What objects are compiled with, wherever $(B) is: with other flags, another SYSCONFDIR say, they are compiled again.
FLAGS := $(subst $(B)/gen,gen,$(CPPFLAGS)) $(CFLAGS) $(CXXFLAGS) $(LDFLAGS)
FLAGS_STAMP := $(B)/.flags
ifneq ($(file <$(FLAGS_STAMP)),$(FLAGS))
.PHONY: other-flags
$(FLAGS_STAMP): other-flags
endif
$(FLAGS_STAMP):
	@mkdir -p $(@D)
	@printf '%s\n' '$(subst ','\'',$(FLAGS))' > $@
# V=1 shows the commands.
V ?=
Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-5s %s\n' $(1) $(or $(2),$@))
