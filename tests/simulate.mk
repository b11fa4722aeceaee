# The simulator: whole clusters in one process, under faults, from a seed. Included by the Makefile.
#
# The roles' own code, with the system's libc; tests/simulate replaces the system functions that it calls (see world.h).
# Optimised and without sanitizers, because it runs thousands of clusters a minute.
simulation := build/simulate
SEEDS ?= 4000
SHORTAGES ?= 1600
ROLLOUTS ?= 150
PROGRAMS ?= 20
simulated := -std=gnu11 -DTRAINER_SIMULATED -O2 -g -fno-omit-frame-pointer $(mathflags) $(warnings)
$(call remember,$(simulation)/flags,$(CC) $(simulated) $(cppflags) $(link_with))

simulator_sources := $(wildcard tests/simulate/*.c)
simulator_objects := $(simulator_sources:%.c=$(simulation)/%.o)
unsimulated       := worker/cpu/% base/kernels/% worker/engine_choose.c base/process/signals.c base/process/restart.c \
	base/process/self.c base/trust.c
simulated_objects := $(patsubst %.c,$(simulation)/%.o,$(filter-out $(unsimulated),$(sources)))
replaced := malloc calloc realloc free strdup strndup aligned_alloc _exit \
	pthread_create pthread_join pthread_mutex_init pthread_mutex_destroy pthread_mutex_lock pthread_mutex_unlock \
	pthread_cond_init pthread_cond_destroy pthread_cond_wait \
	pthread_cond_timedwait pthread_cond_signal pthread_cond_broadcast \
	clock_gettime nanosleep usleep getpid randombytes_buf randombytes_random randombytes_uniform \
	socket setsockopt getsockopt getsockname bind listen getaddrinfo freeaddrinfo \
	connect accept4 recvmsg recv sendmsg send shutdown \
	poll epoll_create1 epoll_ctl epoll_wait ioctl eventfd eventfd_write eventfd_read close \
	open read pread pwrite write writev fsync rename unlink mkdir stat fstat access ftruncate fcntl \
	opendir readdir closedir dirfd fstatat unlinkat chmod fchmod rmdir \
	statvfs posix_spawn waitpid kill memory_for_this_process threads_give_way
watched := job_create job_select_workers job_try_decide job_destroy job_push job_end_restore job_schedule \
	job_take_step job_end shard_apply buffer_take shard_aggregate channel_send_frame push_pull_join \
	checkpoint_folder_save checkpoint_folder_newest checkpoint_load shard_skip_order shard_schedule \
	schedule_prepare rollout_create rollout_begin versions_add versions_switch versions_step_back manifest_encode \
	handshake_new_incarnation load_data preprocessing_agree preprocessing_publish report_validation
simulator_link = $(patsubst %,-Wl$(comma)--wrap=%,$(replaced) $(watched)) -Lbuild/deps/native/lib $(link_with)

$(simulation)/%.o: %.c $(simulation)/flags $(musl_libs)
	@mkdir -p $(@D)
	@echo "cc $< (simulator)"
	@$(CC) $(simulated) $(cppflags) $(call flags_for,$<) -MMD -MP -c -o $@ $<

$(simulation)/rooms.a: $(simulated_objects)
	@rm -f $@
	@ar rcs $@ $^

$(simulation)/simulate: $(simulator_objects) $(simulation)/rooms.a $(native_libs)
	@$(CC) $(simulated) -o $@ $(simulator_objects) $(simulation)/rooms.a $(simulator_link)

simulate: $(simulation)/simulate
	@tests/simulate/run $< $(SEEDS) $(ROLLOUTS) $(PROGRAMS) $(SHORTAGES)

# Does it notice? Bugs planted one at a time (tests/simulate/mutants/*.patch), in copies under build/.
simulate-mutants: $(simulation)/simulate
	@SIMULATE_COMPILE="$(CC) $(simulated) -iquote . $(cppflags) -c" \
		SIMULATE_LINK_FIRST="$(CC) $(simulated)" \
		SIMULATE_LINK_LAST="$(simulator_objects) $(simulation)/rooms.a $(simulator_link)" tests/simulate/mutants/run $(T)

# The share of the roles' lines that the simulated clusters run. The counting library writes real files: none of its
# calls is replaced.
simulate-coverage: $(native_libs)
	@$(MAKE) simulation=build/simulate-coverage build/simulate-coverage/simulate \
		simulated="-std=gnu11 -DTRAINER_SIMULATED -O1 -g --coverage $(mathflags) $(warnings)"
	@find build/simulate-coverage -name '*.gcda' -delete
	@build/simulate-coverage/simulate --seeds=$(SEEDS)
	@build/simulate-coverage/simulate --rollout --seeds=$(ROLLOUTS)
	@build/simulate-coverage/simulate --programs --seeds=$(PROGRAMS)
	@build/simulate-coverage/simulate --shortage --seeds=$(SHORTAGES)
	@tests/simulate/coverage build/simulate-coverage ps ps/store ps/checkpoint ps/job ps/shard ps/rollout ps/server net

build/simulate-coverage/libgcov.a:
	@mkdir -p $(@D)
	@objcopy $(foreach name,$(replaced),--redefine-sym $(name)=__real_$(name)) $$($(CC) -print-file-name=libgcov.a) $@

# A weak call writes the counts, so nothing else would link it in.
build/simulate-coverage/simulate: simulator_link += -Lbuild/simulate-coverage -Wl,-u,__gcov_dump
build/simulate-coverage/simulate: build/simulate-coverage/libgcov.a

-include $(simulator_objects:.o=.d) $(simulated_objects:.o=.d)

.PHONY: simulate simulate-mutants simulate-coverage
