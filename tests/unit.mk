# Unit tests: the product's sources with sanitizers and the system's libc. Included by the Makefile.

tests := $(wildcard tests/*/test_*.c tests/*/*/test_*.c tests/*/*/*/test_*.c)

sanitized := -std=gnu11 -Og -g -fno-omit-frame-pointer $(mathflags) $(warnings) \
	-fsanitize=address,undefined -fno-sanitize-recover=undefined
$(call remember,build/san/flags,$(CC) $(sanitized) $(cppflags) $(link_with))

san_objects := $(sources:%.c=build/san/%.o)
# Tests link the GPU engine's process except its main.
san_hosted  := $(patsubst %.c,build/san/%.o,$(filter-out %/main.c,$(hosted)))

# SAN=thread: see tests/threads.mk. One program can't have both.
SAN ?= address
debug: $(if $(filter thread,$(SAN)),build/tsan/trainer,build/debug/trainer)

build/debug/trainer: $(san_objects) build/san/trainer.o $(native_libs)
	@mkdir -p $(@D)
	@$(CC) $(sanitized) -o $@ $(san_objects) build/san/trainer.o -Lbuild/deps/native/lib $(link_with)
	@echo "build: $@ (AddressSanitizer, UndefinedBehaviorSanitizer)"

# The optimizers' loops as the product has them, vectorised: their test compares the bits of one instruction set with
# another's.
build/san/ps/store/optimizer_avx%.o: san_flags := -O3 -fno-sanitize=all

# Slow ones are optimised, and checked just as closely.
build/san/worker/cpu/%.o build/san/base/kernels/%.o: san_flags := -O2

# Of a test a report needs lines only.
build/san/tests/%.o: san_flags := -O1 -g1

build/san/%.o: %.c build/san/flags $(musl_libs)
	@mkdir -p $(@D)
	@echo "cc $< (sanitizers)"
	@$(CC) $(sanitized) $(cppflags) $(call flags_for,$<) $(san_flags) -MMD -MP -c -o $@ $<

$(tests:%.c=build/san/%.o): | $(packages)

# One archive, so that a test program takes in only the modules it uses.
build/san/rooms.a: $(san_objects) $(san_hosted)
	@rm -f $@
	@ar rcs $@ $^

# `mirrors the tree`: tests/base/test_file.c becomes build/san/tests/base/test_file.
unit_programs := $(tests:%.c=build/san/%)

# The program that tests in other languages talk to.
test_servers := $(patsubst %.c,build/san/%,$(wildcard tests/*/server.c tests/*/*/peer.c))

# Calls that tests replace, unless they define them themselves (tests/system.h). Patterns, because build/san/tests and
# build/tsan/tests need the same ones.

# Tests in which memory runs short know functions by their symbols (tests/no_memory.h).
memory_link := -rdynamic

build/%/tests/base/config/test_keys build/%/tests/worker/data/table/test_no_memory \
build/%/tests/ps/checkpoint/test_no_memory \
build/%/tests/ps/job/test_no_memory build/%/tests/ps/rollout/test_no_memory \
build/%/tests/ps/server/test_no_memory build/%/tests/ps/server/test_rollouts_no_memory: link_with += $(memory_link)

crowds_link := $(addprefix -Wl$(comma)--wrap=,clock_monotonic_s condition_wait_for accept_queue_park pthread_create \
	wake_wait)
build/%/tests/net/test_crowds: link_with += $(crowds_link)

# The training loop with the tests' own updater and clock, which see all its output (tests/worker/loop.h).
build/%/tests/worker/test_training_loop build/%/tests/worker/test_training_validations: link_with += \
	$(addprefix -Wl$(comma)--wrap=,clock_monotonic_s clock_pause signals_pending \
	evaluation_create evaluation_destroy evaluation_finds_threshold evaluate \
	report_start report_step report_validation report_interrupted report_done \
	summary_open summary_reschedule summary_is_due summary_steps_to_due summary_write summary_validation summary_test \
	summary_close observed_start observed_steps observed_validation observed_model observed_test observe_state \
	progress_begin progress_update progress_end)

# A chief's test sees what it saves and takes over first.
build/%/tests/worker/remote/chief/test_chief build/%/tests/worker/remote/chief/test_checkpoints: \
	link_with += $(addprefix -Wl$(comma)--wrap=,checkpoint_folder_save lineage_is_fresh lineage_adopts pthread_create)

build/%/tests/worker/remote/chief/test_checkpoints: link_with += -Wl,--wrap=pthread_cond_timedwait

build/%/tests/worker/remote/test_live_config: \
	link_with += $(addprefix -Wl$(comma)--wrap=, \
	clock_monotonic_s clock_pause memory_for_this_process lineage_read restart_within signals_pending statvfs)

# Time passes faster than it does.
build/%/tests/worker/remote/operator/test_rollout build/%/tests/worker/remote/operator/test_rollout_asked: \
	link_with += $(addprefix -Wl$(comma)--wrap=,clock_monotonic_s clock_pause isatty operator_key_read_secret \
	signals_pending sodium_memzero)
build/%/tests/worker/remote/test_own_rows: \
	link_with += $(memory_link) $(addprefix -Wl$(comma)--wrap=,clock_monotonic_s clock_pause signals_pending)
build/%/tests/worker/remote/operator/test_top: \
	link_with += $(addprefix -Wl$(comma)--wrap=,status_query_create status_query_ask \
	status_query_destroy top_show)
build/%/tests/worker/remote/operator/test_cluster: \
	link_with += $(addprefix -Wl$(comma)--wrap=,clock_monotonic_s execv fork pipe2 progress_begin \
	progress_end progress_update read signals_pending status_query_ask threads_available trace_read trace_write)
build/%/tests/worker/remote/test_heartbeat: link_with += $(addprefix -Wl$(comma)--wrap=,notify_alive \
	observe_traffic observe_waiting)
build/%/tests/worker/remote/test_batches: link_with += $(addprefix -Wl$(comma)--wrap=, \
	examples_create malloc streaming_draw streaming_create_batch)

# A worker on its test's own clock, which also replaces its other system calls.
build/%/tests/worker/remote/worker/test_worker build/%/tests/worker/remote/worker/test_rounds \
build/%/tests/worker/remote/worker/test_end build/%/tests/worker/remote/worker/test_role: \
	link_with += $(addprefix -Wl$(comma)--wrap=,clock_monotonic_s \
	clock_pause restart_spawn_helper threads_give_way threads_available notify_ready notify_stopping notify_restarting)
build/%/tests/worker/remote/worker/test_role: link_with += $(addprefix -Wl$(comma)--wrap=,streaming_draw \
	streaming_create_batch streaming_take_share streaming_destroy fleet_watch_create fleet_watch_destroy \
	fleet_watch_members fleet_watch_most observe_source)

# Requests to no real server.
requests_link := $(addprefix -Wl$(comma)--wrap=,http_request_header http_request_accepts http_request_body http_answer \
	http_answer_error http_request_account)
build/%/tests/serve/test_work: link_with += $(requests_link)

# A whole ps, which leaves when its test says so.
build/%/tests/ps/test_server build/%/tests/ps/test_leaving build/%/tests/ps/server/test_follower \
build/%/tests/ps/server/test_learn: \
	link_with += $(addprefix -Wl$(comma)--wrap=,signals_pending notify_ready notify_stopping)
build/%/tests/ps/test_leaving: \
	link_with += $(addprefix -Wl$(comma)--wrap=,notify_restarting notify_alive)

# What the other ps report.
build/%/tests/ps/server/test_shown: link_with += $(addprefix -Wl$(comma)--wrap=, \
	fleet_watch_create fleet_watch_destroy fleet_watch_members)

# With locks that check their use.
$(unit_programs) $(test_servers): %: %.o build/san/tests/locks.o build/san/rooms.a $(native_libs)
	@$(CC) $(sanitized) -o $@ $< build/san/tests/locks.o build/san/rooms.a -Lbuild/deps/native/lib -lcmocka $(link_with)

-include $(san_objects:.o=.d) $(san_hosted:.o=.d) build/san/trainer.d build/san/tests/locks.d $(unit_programs:=.d) \
	$(test_servers:=.d)

# The product's objects under valgrind (tests/test_constant_time.py), whose header is not part of musl.
constant_time := build/product/tests/net/tls/constant_time.o
$(constant_time): cppflags += -isystem build/include
$(constant_time): build/include/valgrind
build/include/valgrind: | $(packages)
	@mkdir -p $(@D)
	@ln -sfn /usr/include/valgrind $@

build/constant_time: $(constant_time) $(filter-out build/product/trainer.o,$(objects)) $(musl_libs)
	@$(musl_cc) -o $@ $(filter %.o,$^) -Lbuild/deps/lib $(link_with)

-include $(constant_time:.o=.d)

.PHONY: debug
