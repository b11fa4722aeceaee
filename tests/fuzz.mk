# Fuzz targets: the decoders of all that comes from outside, with clang's sanitizers. Included by the Makefile.

FUZZ_SECONDS      ?= 20
# Beside what else computes, with a quarter of a processor, say.
FUZZ_TEST_SECONDS ?= 12

fuzzers := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))

# gcc's warnings decide, on the same files; clang has others.
fuzzed  := $(filter-out $(warnings),$(sanitized)) -w -fsanitize=fuzzer-no-link
$(call remember,build/fuzz/flags,$(CLANG) $(fuzzed) $(cppflags) $(link_with))

# Without the kernels, which no decoder uses and which take clang minutes with sanitizers.
fuzz_objects  := $(patsubst %.c,build/fuzz/%.o,$(filter-out worker/cpu/% base/kernels/%,$(sources)))
fuzz_programs := $(fuzzers:%=build/fuzz/%)

build/fuzz/%.o: %.c build/fuzz/flags $(musl_libs) | $(packages)
	@mkdir -p $(@D)
	@echo "cc $< (fuzzing)"
	@$(CLANG) $(fuzzed) $(cppflags) $(call flags_for,$<) -MMD -MP -c -o $@ $<

build/fuzz/rooms.a: $(fuzz_objects)
	@rm -f $@
	@ar rcs $@ $^

build/fuzz/fuzz_requests: link_with += $(serving_link)

$(fuzz_programs): build/fuzz/%: build/fuzz/tests/fuzz/%.o build/fuzz/rooms.a $(native_libs)
	@$(CLANG) $(sanitized) -fsanitize=fuzzer -o $@ $< build/fuzz/rooms.a -Lbuild/deps/native/lib $(link_with)

fuzz: $(fuzz_programs)
	@tests/fuzz/run $(FUZZ_SECONDS) $(fuzzers)

-include $(fuzz_objects:.o=.d) $(fuzzers:%=build/fuzz/tests/fuzz/%.d)

.PHONY: fuzz
