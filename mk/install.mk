# make install puts everything under PREFIX, configuration under SYSCONFDIR, all below DESTDIR when given. Files in
# SYSCONFDIR that are there already are left alone: they may have been edited.
INSTALL ?= install
OBJCOPY ?= objcopy
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR ?= $(PREFIX)/share/outrider
MANDIR ?= $(PREFIX)/share/man
UNITDIR ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
BASHCOMPDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHCOMPDIR ?= $(PREFIX)/share/zsh/site-functions
MAN_PAGES := $(wildcard man/*.[1358])
UNITS_IN := $(wildcard systemd/*.service.in)
UNITS_PLAIN := outrider.target outrider-ready.service outrider-gateway.socket
UNITS := $(notdir $(UNITS_IN:.in=)) $(UNITS_PLAIN)
# One file completes the words of these; outriderctl has its own.
COMPLETED := outrider outrider-model outrider-bench outrider-verifier outrider-drafter outrider-expert-cache \
	outrider-policy outrider-gateway
CONFIGS := $(notdir $(wildcard config/*.conf))
man_path = $(MANDIR)/man$(subst .,,$(suffix $(1)))/$(notdir $(1))
INSTALLED := $(PROGRAMS:%=$(BINDIR)/%) $(INCLUDEDIR)/outrider.h $(LIBDIR)/liboutrider.a \
	$(LIBDIR)/liboutrider.so.$(VERSION) $(LIBDIR)/liboutrider.so.0 $(LIBDIR)/liboutrider.so \
	$(LIBDIR)/pkgconfig/outrider.pc $(foreach p,$(MAN_PAGES),$(call man_path,$(p))) $(UNITS:%=$(UNITDIR)/%) \
	$(SYSUSERSDIR)/outrider.conf $(BASHCOMPDIR)/outriderctl $(ZSHCOMPDIR)/_outriderctl \
	$(COMPLETED:%=$(BASHCOMPDIR)/%) $(ZSHCOMPDIR)/_outrider $(DATADIR)/grafana.json

# The back end for GPUs is installed if make cuda has built it, with what the units need for it.
CUDA_BUILT := $(wildcard $(B)/outrider-backend-cuda.so)
CUDA_UNITS := outrider-verifier outrider-drafter outrider-expert-cache
CUDA_INSTALLED := $(LIBDIR)/outrider/outrider-backend-cuda.so $(CUDA_UNITS:%=$(UNITDIR)/%.service.d/cuda.conf)

# The static SDK: one object of everything the shared one is linked from, which shows its users the same names. It has its own
# folder because $(B)/liboutrider.a is the command line client's own objects.
$(B)/sdk/liboutrider.a: $(call objects,$(SRC_client)) $(B)/libipc.a $(B)/libbase.a $(B)/libproto.a client/sdk/liboutrider.map
	@mkdir -p $(@D)
	@rm -f $@
	@sed -n 's/^\t\(outrider_[a-z_]*\);$$/\1/p' client/sdk/liboutrider.map > $(B)/sdk/names
	$(call say,LD)
	$(Q)$(CC) -r -nostdlib -o $(B)/sdk/outrider.o $(call objects,$(SRC_client)) -Wl,--start-group $(B)/libipc.a $(B)/libbase.a \
		$(B)/libproto.a -Wl,--end-group
	$(Q)$(OBJCOPY) --keep-global-symbols=$(B)/sdk/names $(B)/sdk/outrider.o
	$(Q)$(AR) rcs $@ $(B)/sdk/outrider.o

.PHONY: install uninstall
## make install    programs, SDK, man pages, units and configuration (PREFIX, DESTDIR, SYSCONFDIR)
install: programs $(B)/sdk/liboutrider.a
	$(INSTALL) -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(INCLUDEDIR) \
		$(DESTDIR)$(MANDIR)/man1 $(DESTDIR)$(MANDIR)/man3 $(DESTDIR)$(MANDIR)/man5 \
		$(DESTDIR)$(MANDIR)/man8 \
		$(DESTDIR)$(UNITDIR) $(DESTDIR)$(SYSUSERSDIR) $(DESTDIR)$(SYSCONFDIR)/outrider \
		$(DESTDIR)$(BASHCOMPDIR) $(DESTDIR)$(ZSHCOMPDIR) $(DESTDIR)$(DATADIR)
	$(INSTALL) -m 755 $(PROGRAMS:%=$(B)/%) $(DESTDIR)$(BINDIR)
	$(INSTALL) -m 644 client/include/outrider.h $(DESTDIR)$(INCLUDEDIR)
	$(INSTALL) -m 644 $(B)/sdk/liboutrider.a $(DESTDIR)$(LIBDIR)
	$(INSTALL) -m 755 $(B)/liboutrider.so $(DESTDIR)$(LIBDIR)/liboutrider.so.$(VERSION)
	ln -sf liboutrider.so.$(VERSION) $(DESTDIR)$(LIBDIR)/liboutrider.so.0
	ln -sf liboutrider.so.0 $(DESTDIR)$(LIBDIR)/liboutrider.so
	sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@LIBDIR@|$(LIBDIR)|g' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|g' \
		-e 's|@VERSION@|$(VERSION)|g' client/sdk/outrider.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/outrider.pc
	for page in $(MAN_PAGES); do \
		$(INSTALL) -m 644 $$page $(DESTDIR)$(MANDIR)/man$${page##*.}/ || exit 1; done
	for unit in $(UNITS_IN); do \
		sed -e 's|@BINDIR@|$(BINDIR)|g' -e 's|@SYSCONFDIR@|$(SYSCONFDIR)|g' $$unit \
			> $(DESTDIR)$(UNITDIR)/$$(basename $$unit .in) || exit 1; done
	$(INSTALL) -m 644 $(UNITS_PLAIN:%=systemd/%) $(DESTDIR)$(UNITDIR)
	$(INSTALL) -m 644 systemd/outrider-sysusers.conf $(DESTDIR)$(SYSUSERSDIR)/outrider.conf
	$(INSTALL) -m 644 admin/completion/outriderctl.bash $(DESTDIR)$(BASHCOMPDIR)/outriderctl
	$(INSTALL) -m 644 admin/completion/_outriderctl $(DESTDIR)$(ZSHCOMPDIR)
	for program in $(COMPLETED); do \
		$(INSTALL) -m 644 client/completion/outrider.bash $(DESTDIR)$(BASHCOMPDIR)/$$program || exit 1; done
	$(INSTALL) -m 644 client/completion/_outrider $(DESTDIR)$(ZSHCOMPDIR)
	$(INSTALL) -m 644 config/grafana.json $(DESTDIR)$(DATADIR)
	for file in $(CONFIGS); do test -e $(DESTDIR)$(SYSCONFDIR)/outrider/$$file || \
		$(INSTALL) -m 644 config/$$file $(DESTDIR)$(SYSCONFDIR)/outrider/ || exit 1; done
	$(if $(CUDA_BUILT),$(INSTALL) -D -m 755 $(CUDA_BUILT) $(DESTDIR)$(LIBDIR)/outrider/outrider-backend-cuda.so)
	$(if $(CUDA_BUILT),for unit in $(CUDA_UNITS); do \
		$(INSTALL) -D -m 644 systemd/cuda.conf $(DESTDIR)$(UNITDIR)/$$unit.service.d/cuda.conf || exit 1; done)
## make uninstall  remove what install put there, except edited configuration
uninstall:
	rm -f $(INSTALLED:%=$(DESTDIR)%) $(CUDA_INSTALLED:%=$(DESTDIR)%)
	rmdir $(DESTDIR)$(LIBDIR)/outrider $(CUDA_UNITS:%=$(DESTDIR)$(UNITDIR)/%.service.d) 2>/dev/null || true
	for file in $(CONFIGS); do cmp -s config/$$file $(DESTDIR)$(SYSCONFDIR)/outrider/$$file && \
		rm -f $(DESTDIR)$(SYSCONFDIR)/outrider/$$file; done; true
	rmdir $(DESTDIR)$(SYSCONFDIR)/outrider $(DESTDIR)$(DATADIR) 2>/dev/null || true
