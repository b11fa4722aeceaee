# Fuzz targets: the decoders of all external input, with clang's sanitizers. Included by the Makefile.

FUZZ_SECONDS ?= 11
# In `make test`: so many runs, always the same, whatever the machine's load.
FUZZ_TEST    ?= runs=2000

fuzzers := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))

# gcc's warnings decide, on the same files; clang has different ones.
fuzzed  := $(filter-out $(warnings),$(sanitized)) -w -fsanitize=fuzzer-no-link
$(call remember,build/fuzz/flags,$(CLANG) $(fuzzed) $(cppflags) $(link_with))

# Without what no decoder uses: a third of the files. A fuzzer that needs one of them doesn't link until it is taken off
# this list.
not_fuzzed := worker/cpu/% base/kernels/% observe/top/% worker/summary/% worker/clients/% \
	$(addprefix base/,cli/help.c config/commands.c process/notify.c progress.c) net/keygen.c \
	$(addprefix observe/,api.c board.c guard.c http/loop.c metrics.c observe.c) \
	serve/serve.c \
	$(addprefix ps/,checkpoint/writer.c rollout/agent.c rollout/participant.c server/listen.c server/server.c) \
	$(addprefix worker/,checkpoints.c data/commands.c follow.c initial.c local_run.c local_steps.c \
	observed.c report.c train.c training.c version.c) \
	$(addprefix worker/export/,dashboard.c eval.c explain.c export.c first_layer.c inspect.c onnx.c) \
	$(addprefix worker/remote/,chief.c heartbeat.c live_config.c operator/cluster.c \
	operator/rollout.c operator/status.c own_rows.c place.c remote_worker.c trial.c worker.c)
fuzz_objects  := $(patsubst %.c,build/fuzz/%.o,$(filter-out $(not_fuzzed),$(sources)))
fuzz_programs := $(fuzzers:%=build/fuzz/%)

build/fuzz/%.o: %.c build/fuzz/flags $(musl_libs) | $(packages)
	@mkdir -p $(@D)
	@echo "cc $< (fuzzing)"
	@$(CLANG) $(fuzzed) $(cppflags) $(call flags_for,$<) -MMD -MP -c -o $@ $<

build/fuzz/rooms.a: $(fuzz_objects)
	@rm -f $@
	@ar rcs $@ $^

# Clients in a fuzzer meet only its input, and wait for nothing.
answers_link := $(addprefix -Wl$(comma)--wrap=,clock_monotonic_s wake_wait connection_connect \
	pthread_create pthread_join pthread_cond_timedwait)
followed_link := $(addprefix -Wl$(comma)--wrap=,connection_connect pthread_create pthread_join)
build/fuzz/fuzz_requests: link_with += $(followed_link)
build/fuzz/fuzz_answers: link_with += $(answers_link)
build/fuzz/fuzz_tls_hello: link_with += -Wl,--wrap=transport_wait
build/fuzz/fuzz_http: link_with += -Wl,--wrap=connection_live

$(fuzz_programs): build/fuzz/%: build/fuzz/tests/fuzz/%.o build/fuzz/tests/fuzz/limit.o \
		build/fuzz/rooms.a $(native_libs)
	@$(CLANG) $(sanitized) -fsanitize=fuzzer -Wl,--wrap=LLVMFuzzerTestOneInput -o $@ $(filter %.o,$^) \
		build/fuzz/rooms.a -Lbuild/deps/native/lib $(link_with)

fuzz: $(fuzz_programs)
	@tests/fuzz/run $(FUZZ_SECONDS) $(fuzzers)

# Hours of processor time for each target, or for those whose names contain T.
HOURS ?= 2
fuzz-long: $(fuzz_programs)
	@tests/fuzz/long $(HOURS) $(or $(patsubst -j%,%,$(filter -j%,$(MAKEFLAGS))),1) \
		$(foreach target,$(fuzzers),$(if $(findstring $(T),$(target)),$(target)))

# Which lines of the decoders do the inputs reach? Compiled with little optimisation, without sanitizers, counted by
# gcc.
counted := -std=gnu11 -O1 -g --coverage $(mathflags) $(warnings)
$(call remember,build/fuzz-coverage/flags,$(CC) $(counted) $(cppflags) $(link_with))
counted_programs := $(fuzzers:%=build/fuzz-coverage/%)

build/fuzz-coverage/%.o: %.c build/fuzz-coverage/flags $(musl_libs)
	@mkdir -p $(@D)
	@echo "cc $< (counting)"
	@$(CC) $(counted) $(cppflags) $(call flags_for,$<) -MMD -MP -c -o $@ $<

build/fuzz-coverage/rooms.a: $(fuzz_objects:build/fuzz/%=build/fuzz-coverage/%)
	@rm -f $@
	@ar rcs $@ $^

build/fuzz-coverage/fuzz_requests: link_with += $(followed_link)
build/fuzz-coverage/fuzz_answers: link_with += $(answers_link)
build/fuzz-coverage/fuzz_tls_hello: link_with += -Wl,--wrap=transport_wait
build/fuzz-coverage/fuzz_http: link_with += -Wl,--wrap=connection_live

$(counted_programs): build/fuzz-coverage/%: build/fuzz-coverage/tests/fuzz/%.o build/fuzz-coverage/tests/fuzz/replay.o \
		build/fuzz-coverage/rooms.a $(native_libs)
	@$(CC) $(counted) -o $@ $(filter %.o,$^) build/fuzz-coverage/rooms.a -Lbuild/deps/native/lib $(link_with)

fuzz-coverage: $(counted_programs)
	@tests/fuzz/coverage $(fuzzers)

-include $(fuzz_objects:.o=.d) $(fuzzers:%=build/fuzz/tests/fuzz/%.d) build/fuzz/tests/fuzz/limit.d
-include $(fuzz_objects:build/fuzz/%.o=build/fuzz-coverage/%.d) $(fuzzers:%=build/fuzz-coverage/tests/fuzz/%.d)

.PHONY: fuzz fuzz-long fuzz-coverage
