CC ?= gcc
OPT ?= -O2 -g
WARN := -Wall -Wextra -Wshadow -Wconversion -Werror
PKGS := libzmq libprotobuf-c libsystemd inih liburing jansson libpcre2-8 numa
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lpthread -lm
# -ffp-contract=off: the compiler must not fuse what kernels.h says are two roundings.
CPPFLAGS += -D_GNU_SOURCE -I. -I$(B)/gen $(PKG_CFLAGS)
CFLAGS += -std=gnu11 $(OPT) $(WARN) -ffp-contract=off -fno-math-errno \
	-fstack-protector-strong -pthread -fPIC
CFLAGS += -DOUTRIDER_VERSION='"$(VERSION)"' -DOUTRIDER_PREFIX='"$(PREFIX)"' -DOUTRIDER_SYSCONFDIR='"$(SYSCONFDIR)"'
LDLIBS += $(PKG_LIBS)
ifneq ($(SAN),)
CFLAGS += -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all
LDFLAGS += -fsanitize=$(SAN)
endif
# V=1 shows the commands.
V ?=
Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-5s %s\n' $(1) $(or $(2),$@))
