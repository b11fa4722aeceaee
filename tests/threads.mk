# Data races: the product's sources with ThreadSanitizer and the system's libc. Included by the Makefile.
#
# Of the libraries only libc is instrumented: Mbed TLS and the like are those of the other sanitizers' build.

raced := $(filter-out -fsanitize=% -fno-sanitize-recover=%,$(sanitized)) -fsanitize=thread
$(call remember,build/tsan/flags,$(CC) $(raced) $(cppflags) $(link_with))

raced_objects := $(sources:%.c=build/tsan/%.o)

build/tsan/%.o: %.c build/tsan/flags $(musl_libs)
	@mkdir -p $(@D)
	@echo "cc $< (threads)"
	@$(CC) $(raced) $(cppflags) $(call flags_for,$<) $(raced_flags) -MMD -MP -c -o $@ $<

# Kernels run on threads that share nothing in them but what pool_run hands out: they need -O2 to be bearable.
build/tsan/worker/cpu/%.o build/tsan/base/kernels/%.o: raced_flags := -O2

build/tsan/rooms.a: $(raced_objects)
	@rm -f $@
	@ar rcs $@ $^

build/tsan/trainer: $(raced_objects) build/tsan/trainer.o $(native_libs)
	@$(CC) $(raced) -o $@ $(raced_objects) build/tsan/trainer.o -Lbuild/deps/native/lib $(link_with)
	@echo "build: $@ (ThreadSanitizer)"

# Unit tests that start threads, or test what threads share; the slowest come last.
threaded := base/test_log base/test_threads net/test_connection net/test_endpoint net/test_link net/test_listener \
	net/test_crowds net/test_rest net/test_tls ps/checkpoint/test_folder \
	worker/data/test_streaming ps/store/test_store ps/test_shard ps/shard/test_orders ps/shard/test_aggregate
threaded_programs := $(threaded:%=build/tsan/tests/%)

$(threaded_programs:=.o): | $(packages)

$(threaded_programs): %: %.o build/tsan/rooms.a $(native_libs)
	@$(CC) $(raced) -o $@ $< build/tsan/rooms.a -Lbuild/deps/native/lib -lcmocka $(link_with)

# Those, and clusters of real processes under faults and rollouts: one report is a failure.
test-threads: $(threaded_programs) build/tsan/trainer build/venv/ready
	@TSAN_OPTIONS="suppressions=$(CURDIR)/tests/races.supp:history_size=4" UNIT_LOGS=build/tsan/logs \
		tests/units "" $(threaded_programs)
	@$(pytest) -m races -n 2 tests/test_races.py

-include $(raced_objects:.o=.d) build/tsan/trainer.d $(threaded_programs:=.d)

.PHONY: test-threads
