# Messages: proto/*.proto -> $(B)/gen/proto/*.pb-c.[ch] -> libproto.a
PROTO := $(wildcard proto/*.proto)
PROTO_C := $(PROTO:%.proto=$(B)/gen/%.pb-c.c)
PROTO_H := $(PROTO_C:.c=.h)
$(B)/gen/proto/.stamp: $(PROTO)
	@mkdir -p $(B)/gen
	$(call say,PROTO)
	$(Q)protoc-c --c_out=$(B)/gen $(PROTO)
	@touch $@
$(PROTO_C) $(PROTO_H): $(B)/gen/proto/.stamp
# Generated code is not held to our warnings.
$(B)/gen/proto/%.pb-c.o: $(B)/gen/proto/.stamp $(FLAGS_STAMP)
	$(call say,CC)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -w -c -o $@ $(B)/gen/proto/$*.pb-c.c
$(B)/libproto.a: $(PROTO_C:.c=.o)
	@rm -f $@; $(AR) rcs $@ $^
