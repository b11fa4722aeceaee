# trainer: `make run` builds and trains, `make test` proves it, `make help` lists the rest.
#
# The product is one static PIE on musl, whose compiler wrapper base/deps/build makes (build/deps/musl/bin/musl-cc).
# Unit tests, `debug` and `fuzz` compile the same sources against the system's libc with sanitizers.
# All that is made lies under build/; downloads are kept in the user's cache folder (base/deps/fetch).

VERSION   := 0.1.0
CC        := $(or $(CROSS_CC),gcc)
CLANG     := clang
PREFIX    ?= /usr/local
UNITDIR   ?= $(PREFIX)/lib/systemd/system
DESTDIR   ?=
ARGS      ?=
T         ?=
ARCH      ?=
DATA_DIR  ?= data
FUZZ_SECONDS      ?= 20
FUZZ_TEST_SECONDS ?= 3

# Folder of unpacked upstream sources, instead of Debian's source packages: see README.md.
DEPS_DIR  ?=
export DEPS_DIR DEPS_CACHE DEPS_SUITES MNIST_URL CC

# All processors, unless -j says otherwise.
ifeq ($(filter -j%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif
MAKEFLAGS += --no-print-directory
.DELETE_ON_ERROR:
.SECONDARY:
SHELL := /bin/sh

all: $(or $(ARCH),build/trainer)

# --- What is compiled --------------------------------------------------------------------------------------------------

rooms   := base net ps worker cuda
# What runs in the GPU engine's own process, on glibc, is no part of the static program: cuda/build.mk.
hosted  := $(wildcard cuda/device/*.c cuda/helper/*.c)
# Nor is what is written for the instructions of another kind of processor than CC compiles for.
# (Before the compiler is installed, it is this machine's.)
machine := $(firstword $(subst -, ,$(or $(shell $(CC) -dumpmachine 2>/dev/null),$(shell uname -m))))
foreign := $(if $(filter x86_64,$(machine)),,%_avx2.c %_avx512.c) $(if $(filter aarch64,$(machine)),,%_neon.c)
sources := $(filter-out test_% $(hosted) $(foreign),$(wildcard $(foreach room,$(rooms),$(room)/*.c $(room)/*/*.c $(room)/*/*/*.c)))
headers := $(wildcard $(foreach room,$(rooms),$(room)/*.h $(room)/*/*.h $(room)/*/*/*.h) tests/*/*.h)
tests   := $(wildcard tests/*/test_*.c tests/*/*/test_*.c tests/*/*/*/test_*.c)
fuzzers := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))

warnings := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wundef \
	-Wcast-qual -Wwrite-strings -Wvla -Werror

# No contraction: the reference and every kernel round alike, so that results do not depend on the compiler's mood.
mathflags := -ffp-contract=off -fno-math-errno -fno-trapping-math
# mbedTLS and what calls it see the same configuration; the headers it includes for us to fill in lie beside it.
mbedtls_config := net/tls/mbedtls_config.h
cppflags  := -I. -iquote net/tls -isystem build/deps/include -D_GNU_SOURCE -DMBEDTLS_CONFIG_FILE='"$(mbedtls_config)"'
product   := -std=gnu11 -O3 -g $(mathflags) -ffunction-sections -fdata-sections -fstack-protector-strong \
	-ffile-prefix-map=$(CURDIR)/= $(warnings)
sanitized := -std=gnu11 -O1 -g -fno-omit-frame-pointer $(mathflags) $(warnings) \
	-fsanitize=address,undefined -fno-sanitize-recover=undefined
# gcc's warnings decide, on the same files; clang has others.
fuzzed    := $(filter-out $(warnings),$(sanitized)) -w -fsanitize=fuzzer-no-link

# Files named for an instruction set are compiled for it; everything else runs on any x86-64.
flags_for = $(if $(filter %_avx2.c,$(1)),-mavx2 -mfma) \
	$(if $(filter %_avx512.c,$(1)),-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mbmi2)

# Notes what a build depends on besides files: each note is a file that is written, while this Makefile is read, only
# if it says something else. So other flags, or another commit, rebuild what depends on them. (What make 4.3 reads from a
# file may end with its newline, or not.)
differ   = $(subst x$(1),,x$(2))$(subst x$(2),,x$(1))
remember = $(if $(call differ,$(strip $(file <$(1))),$(strip $(2))),$(shell mkdir -p $(dir $(1)))$(file >$(1),$(2)))

libraries   := cjson libsodium zlib mbedtls $(if $(filter x86_64,$(machine)),intel-ipsec-mb)
musl_libs   := $(foreach library,$(libraries),build/deps/$(library).musl)
native_libs := $(foreach library,$(libraries),build/deps/$(library).native)
# mbedTLS leaves this to net/tls/x25519.c, which is asked for by name because the archive it is in comes first.
x25519      := mbedtls_ecp_mul mbedtls_ecp_mul_restartable
link_with   := $(x25519:%=-Wl,--wrap=%) -Wl,-u,__wrap_mbedtls_ecp_mul -lmbedtls -lcjson -lsodium -lz \
	$(if $(filter x86_64,$(machine)),-lintel-ipsec-mb) -lm -lpthread

$(call remember,build/product/flags,$(product) $(cppflags) $(link_with))
$(call remember,build/san/flags,$(CC) $(sanitized) $(cppflags) $(link_with))
$(call remember,build/fuzz/flags,$(CLANG) $(fuzzed) $(cppflags) $(link_with))
$(call remember,build/version,$(or $(shell git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null),$(VERSION)$(shell \
	git describe --always --dirty --exclude '*' 2>/dev/null | sed 's/^/+g/')))

# --- Third-party libraries: base/deps fetches and builds them ----------------------------------------------------------

# System packages: what the goals need, and no more, asked for once, so that one line tells all that is missing.
goals    := $(or $(MAKECMDGOALS),all)
purposes := build \
	$(if $(filter test test-full lint build/san/% build/lint/%,$(goals)),test) \
	$(if $(filter test test-full lint build/lint/%,$(goals)),lint) \
	$(if $(filter test test-full fuzz build/fuzz/%,$(goals)),fuzz) \
	$(if $(filter test test-full lint format bench vectors build/venv% build/lint/%,$(goals)),python)
empty    :=
packages := build/packages-$(subst $(empty) ,-,$(strip $(purposes)))

$(packages): base/deps/packages
	@mkdir -p build
	@base/deps/packages $(purposes)
	@touch $@

# Both scripts look again, by content, whether there is anything to do: a fresh checkout is no reason to build for minutes.
build/deps/%.source: base/deps/fetch | $(packages)
	@base/deps/fetch $* build/deps/source/$*
	@touch $@

build/deps/musl.musl: build/deps/musl.source base/deps/build
	+@MAKE="$(MAKE)" base/deps/build musl musl build/deps/source/musl build/deps
	@touch $@

$(musl_libs): build/deps/%.musl: build/deps/%.source build/deps/musl.musl base/deps/build
	+@MAKE="$(MAKE)" MBEDTLS_CONFIG=$(mbedtls_config) \
		base/deps/build $* musl build/deps/source/$* build/deps
	@touch $@

# After the musl flavour, which puts the headers in place.
$(native_libs): build/deps/%.native: build/deps/%.musl
	+@MAKE="$(MAKE)" MBEDTLS_CONFIG=$(mbedtls_config) \
		base/deps/build $* native build/deps/source/$* build/deps
	@touch $@

build/deps/mbedtls.musl: $(mbedtls_config) $(wildcard $(dir $(mbedtls_config))*_alt.h)

# --- The GPU engine's program, which the product carries ----------------------------------------------------------------

include cuda/build.mk

include base/deps/cross.mk

# --- The product -------------------------------------------------------------------------------------------------------

objects := $(sources:%.c=build/product/%.o) build/product/trainer.o
musl_cc := build/deps/musl/bin/musl-cc

# Debugging information is kept beside the program that is copied around, which finds it by its link.
build/trainer: build/trainer.debug
	@$(shell $(CC) -print-prog-name=objcopy) --strip-debug --add-gnu-debuglink=$< $< $@.new
	@mv $@.new $@
	@echo "build: $@, $$(($$(wc -c <$@) / 1024)) KiB$(if $(gpu_missing), without the GPU engine: $(gpu_missing))"

build/trainer.debug: $(objects) $(musl_libs) build/product/flags
	@$(musl_cc) -o $@ $(objects) -Lbuild/deps/lib $(link_with)

build/product/%.o: %.c build/product/flags $(musl_libs)
	@mkdir -p $(@D)
	@echo "cc $<"
	@$(musl_cc) $(product) $(cppflags) $(call flags_for,$<) $(defines) -MMD -MP -c -o $@ $<

build/product/base/version.o: build/version
build/product/base/version.o: defines = -DTRAINER_VERSION='"$(shell cat build/version)"' \
	-DTRAINER_LIBC='"musl $(shell cat build/deps/source/musl/.trainer-version)"'

# Programs that measure one room or put load on one, made of the product's own objects: tests/bench/NAME_bench.c and
# NAME_load.c become build/bench/NAME_bench and NAME_load; other .c files there are parts that each may use.
bench_sources  := $(wildcard tests/bench/*_bench.c tests/bench/*_load.c)
bench_programs := $(bench_sources:tests/bench/%.c=build/bench/%)
bench_parts    := $(patsubst %.c,build/product/%.o,$(filter-out $(bench_sources),$(wildcard tests/bench/*.c)))

$(bench_programs): build/bench/%: build/product/tests/bench/%.o $(bench_parts) $(filter-out build/product/trainer.o,$(objects)) $(musl_libs)
	@mkdir -p $(@D)
	@$(musl_cc) -o $@ $(filter %.o,$^) -Lbuild/deps/lib $(link_with)

# The product with a wall clock that tests can set: see there.
build/clocked/trainer: build/product/tests/clock.o $(objects) $(musl_libs)
	@mkdir -p $(@D)
	@$(musl_cc) -o $@ $(filter %.o,$^) -Wl,--wrap=clock_gettime,--wrap=time -Lbuild/deps/lib $(link_with)

# --- With sanitizers, against the system's libc ------------------------------------------------------------------------

san_objects := $(sources:%.c=build/san/%.o)
# Tests link what the GPU engine's process is made of, all but its main.
san_hosted  := $(patsubst %.c,build/san/%.o,$(filter-out %/main.c,$(hosted)))

debug: build/debug/trainer

build/debug/trainer: $(san_objects) build/san/trainer.o $(native_libs)
	@mkdir -p $(@D)
	@$(CC) $(sanitized) -o $@ $(san_objects) build/san/trainer.o -Lbuild/deps/native/lib $(link_with)
	@echo "build: $@ (AddressSanitizer, UndefinedBehaviorSanitizer)"

# The optimizers' loops as the product has them, vectorised: their test compares the bits of one instruction set with
# another's.
build/san/ps/optimizer_avx%.o: san_flags := -O3 -fno-sanitize=all

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

# What tests in other languages talk to.
test_servers := $(patsubst %.c,build/san/%,$(wildcard tests/*/server.c))

# Calls that a test makes fail.
build/san/tests/net/test_shortage: link_with += $(addprefix -Wl$(comma)--wrap=,malloc calloc realloc recv recvmsg send sendmsg)

$(unit_programs) $(test_servers): %: %.o build/san/rooms.a $(native_libs)
	@$(CC) $(sanitized) -o $@ $< build/san/rooms.a -Lbuild/deps/native/lib -lcmocka $(link_with)

# --- A driver without a GPU --------------------------------------------------------------------------------------------

# libcuda.so.1 for tests (tests/cuda/fake/driver.cpp says what it can be told): the true kernels, compiled for this CPU.
# With sanitizers for the unit tests; without, in build/fake, for programs that have none.
CXX          := g++
fake_sources := $(wildcard tests/cuda/fake/*.cpp)
fake_objects := $(fake_sources:%.cpp=build/san/%.o)
fake_plain   := $(fake_sources:%.cpp=build/fake/%.o)
fake_flags   := -std=c++17 -g -fPIC -fvisibility=hidden -Wall -Wextra -Werror -Wno-unknown-pragmas \
	$(mathflags) $(if $(shell grep -m1 -w fma /proc/cpuinfo 2>/dev/null),-mfma)
fake_san     := -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
fake_driver  := build/san/tests/cuda/fake/libcuda.so.1
$(call remember,build/fake/flags,$(CXX) $(fake_flags) $(fake_san) $(cppflags))

fake: build/fake/libcuda.so.1

build/san/tests/cuda/fake/kernels.o build/fake/tests/cuda/fake/kernels.o: fake_flags += -include tests/cuda/fake/words.h

$(fake_objects): build/san/%.o: %.cpp build/fake/flags $(musl_libs) | $(packages)
	@mkdir -p $(@D)
	@echo "c++ $< (sanitizers)"
	@$(CXX) $(fake_flags) $(fake_san) $(cppflags) -MMD -MP -c -o $@ $<

$(fake_plain): build/fake/%.o: %.cpp build/fake/flags $(musl_libs) | $(packages)
	@mkdir -p $(@D)
	@echo "c++ $<"
	@$(CXX) $(fake_flags) -O2 $(cppflags) -MMD -MP -c -o $@ $<

$(fake_driver): $(fake_objects)
	@$(CXX) -shared -fsanitize=address,undefined -Wl,-soname,libcuda.so.1 -o $@ $^

build/fake/libcuda.so.1: $(fake_plain)
	@$(CXX) -shared -Wl,-soname,libcuda.so.1 -o $@ $^

# --- Fuzzing -----------------------------------------------------------------------------------------------------------

# Without the kernels, which no decoder uses and which take clang minutes with sanitizers.
fuzz_objects  := $(patsubst %.c,build/fuzz/%.o,$(filter-out worker/cpu/%,$(sources)))
fuzz_programs := $(fuzzers:%=build/fuzz/%)

build/fuzz/%.o: %.c build/fuzz/flags $(musl_libs) | $(packages)
	@mkdir -p $(@D)
	@echo "cc $< (fuzzing)"
	@$(CLANG) $(fuzzed) $(cppflags) $(call flags_for,$<) -MMD -MP -c -o $@ $<

build/fuzz/rooms.a: $(fuzz_objects)
	@rm -f $@
	@ar rcs $@ $^

$(fuzz_programs): build/fuzz/%: build/fuzz/tests/fuzz/%.o build/fuzz/rooms.a $(native_libs)
	@$(CLANG) $(sanitized) -fsanitize=fuzzer -o $@ $< build/fuzz/rooms.a -Lbuild/deps/native/lib $(link_with)

fuzz: $(fuzz_programs)
	@tests/fuzz/run $(FUZZ_SECONDS) $(fuzzers)

# --- The simulator -----------------------------------------------------------------------------------------------------

# The roles' own code, against the system's libc; what it asks of the system is replaced by tests/simulate (see world.h).
# Optimised and without sanitizers, for it is to run thousands of clusters a minute.
simulation := build/simulate
SEEDS ?= 10000
SHORTAGES ?= 3440
ROLLOUTS ?= 400
simulated := -std=gnu11 -O2 -g -fno-omit-frame-pointer $(mathflags) $(warnings)
$(call remember,$(simulation)/flags,$(CC) $(simulated) $(cppflags) $(link_with))

simulator_sources := $(wildcard tests/simulate/*.c)
simulator_objects := $(simulator_sources:%.c=$(simulation)/%.o)
simulated_objects := $(patsubst %.c,$(simulation)/%.o,$(filter-out worker/cpu/% worker/engine_choose.c worker/load.c base/signals.c base/restart.c,$(sources)))
replaced := malloc calloc realloc free strdup aligned_alloc \
	pthread_create pthread_join pthread_mutex_init pthread_mutex_destroy pthread_mutex_lock pthread_mutex_unlock \
	pthread_cond_init pthread_cond_destroy pthread_cond_wait pthread_cond_timedwait pthread_cond_signal pthread_cond_broadcast \
	clock_gettime nanosleep usleep getpid randombytes_buf randombytes_uniform \
	socket setsockopt getsockopt getsockname bind listen getaddrinfo freeaddrinfo connect accept4 recvmsg recv sendmsg send shutdown \
	poll ioctl eventfd eventfd_write eventfd_read close \
	open read pread pwrite write writev fsync rename unlink mkdir stat fstat access ftruncate fcntl \
	opendir readdir closedir dirfd fstatat unlinkat \
	statvfs posix_spawn waitpid kill memory_for_this_process threads_give_way
watched := job_create job_destroy job_push job_end_restore job_schedule job_take_step job_end shard_create shard_apply shard_aggregate channel_send push_pull_join \
	checkpoint_folder_save checkpoint_folder_newest shard_schedule schedule_prepare rollout_create rollout_begin \
	versions_add versions_switch manifest_encode handshake_new_incarnation
simulator_link = $(patsubst %,-Wl$(comma)--wrap=%,$(replaced) $(watched)) -Lbuild/deps/native/lib $(link_with)
comma := ,

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
	@$(simulation)/simulate --seeds=$(SEEDS)
	@$(simulation)/simulate --rollout --seeds=$(ROLLOUTS)
	@$(simulation)/simulate --shortage --seeds=$(SHORTAGES)

# Does it notice? Bugs planted one at a time (tests/simulate/teeth/*.patch), in copies under build/.
simulate-teeth: $(simulation)/simulate
	@SIMULATE_COMPILE="$(CC) $(simulated) -iquote . $(cppflags) -c" \
		SIMULATE_LINK_FIRST="$(CC) $(simulated)" \
		SIMULATE_LINK_LAST="$(simulator_objects) $(simulation)/rooms.a $(simulator_link)" tests/simulate/teeth/run $(T)

# Which share of the roles' lines the simulated clusters run. The library that counts writes real files: of what it calls,
# nothing is replaced.
simulate-coverage: $(native_libs)
	@$(MAKE) simulation=build/simulate-coverage simulated="-std=gnu11 -O1 -g --coverage $(mathflags) $(warnings)" build/simulate-coverage/simulate
	@find build/simulate-coverage -name '*.gcda' -delete
	@build/simulate-coverage/simulate --seeds=$(SEEDS)
	@build/simulate-coverage/simulate --rollout --seeds=$(ROLLOUTS)
	@build/simulate-coverage/simulate --shortage --seeds=$(SHORTAGES)
	@tests/simulate/coverage build/simulate-coverage ps ps/job ps/rollout ps/server net

build/simulate-coverage/libgcov.a:
	@mkdir -p $(@D)
	@objcopy $(foreach name,$(replaced),--redefine-sym $(name)=__real_$(name)) $$($(CC) -print-file-name=libgcov.a) $@

# What has been counted is written by a call that is weak, so nothing else would bring it in.
build/simulate-coverage/simulate: simulator_link += -Lbuild/simulate-coverage -Wl,-u,__gcov_dump
build/simulate-coverage/simulate: build/simulate-coverage/libgcov.a

# --- Running -----------------------------------------------------------------------------------------------------------

# Without digits in DATA_DIR and without a network the program makes its own: that is no reason to stop here.
run: build/trainer data-if-possible
	build/trainer --config=config.json $(ARGS)

data-if-possible: | $(packages)
	@ls $(DATA_DIR)/train-images*idx3-ubyte* >/dev/null 2>&1 || { base/deps/packages run && base/deps/mnist $(DATA_DIR); } || \
		echo "make run: going on without MNIST; the program generates digits itself"

mnist:
	@base/deps/packages run
	@base/deps/mnist $(DATA_DIR)

install: build/trainer
	install -D -m 755 build/trainer $(DESTDIR)$(PREFIX)/bin/trainer
	install -D -m 644 config.json $(DESTDIR)$(PREFIX)/share/doc/trainer/config.json
	install -D -m 644 README.md $(DESTDIR)$(PREFIX)/share/doc/trainer/README.md
	install -D -m 644 LICENSE $(DESTDIR)$(PREFIX)/share/doc/trainer/LICENSE
	install -D -m 644 deploy/gpu.conf $(DESTDIR)$(PREFIX)/share/doc/trainer/gpu.conf
	install -d $(DESTDIR)$(UNITDIR)
	sed 's|/usr/local/|$(PREFIX)/|' 'deploy/trainer@.service' >'$(DESTDIR)$(UNITDIR)/trainer@.service'
	chmod 644 '$(DESTDIR)$(UNITDIR)/trainer@.service'

# --- Tests -------------------------------------------------------------------------------------------------------------

# With T=name: the unit-test programs and pytest's tests whose names contain it, without lint, fuzzing and simulation.
# Everything is built before anything runs, and the parts run one after the other: tests that measure time want the
# machine.
test_parts := $(unit_programs) $(test_servers) $(fake_driver) build/fake/libcuda.so.1 build/bench/ps_load build/bench/gpu_bench build/trainer build/clocked/trainer build/venv/ready $(if $(T),,lint $(fuzz_programs) build/simulate/simulate aarch64)

test: $(test_parts)
	@$(if $(T),,tests/fuzz/run $(FUZZ_TEST_SECONDS) $(fuzzers))
	@$(if $(T),,build/simulate/simulate --seeds=$(SEEDS))
	@$(if $(T),,build/simulate/simulate --rollout --seeds=$(ROLLOUTS))
	@$(if $(T),,build/simulate/simulate --shortage --seeds=$(SHORTAGES))
	@tests/run "$(T)" $(unit_programs)

test-full: export TRAINER_TEST_FULL = 1
test-full: FUZZ_TEST_SECONDS = 60
test-full: test

# Python tools live in virtual environments of their own, one for each purpose; none is part of the product.
build/venv%/ready: tests/requirements%.txt | $(packages)
	@echo "python: $(@D)"
	@python3 -m venv --clear $(@D)
	@$(@D)/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

build/venv/ready: tests/requirements.txt | $(packages)
	@echo "python: $(@D)"
	@python3 -m venv --clear $(@D)
	@$(@D)/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

# Ratios against what a user would pick instead, into tests/bench/RESULTS.md.
bench: build/trainer $(bench_programs) build/simulate/simulate build/venv-bench/ready
	PATH="$(CURDIR)/build/venv-bench/bin:$$PATH" tests/bench/run $(ARGS)

# Remakes the reference figures that the unit tests compare with.
vectors: build/venv-vectors/ready build/venv/ready
	@for script in tests/vectors/*.py; do \
		echo "$$script"; PATH="build/venv/bin:$$PATH" build/venv-vectors/bin/python "$$script" || exit 1; \
	done

# --- Lint --------------------------------------------------------------------------------------------------------------

# A file is looked at again when its object was made again, which is when it or a header of its own has changed.
tidy_stamps   := $(patsubst %.c,build/lint/%.tidy,$(sources) $(hosted) trainer.c $(tests) $(wildcard tests/clock.c tests/fuzz/*.c tests/bench/*.c tests/*/server.c tests/simulate/*.c))
# Templates that a kernel file includes after choosing its instruction set (*_loops.h) can't stand alone.
header_stamps := $(patsubst %,build/lint/%.alone,$(filter-out %_loops.h,$(headers)))

# Our prototypes of the driver API against a toolkit's.
cuda_header := $(if $(NVCC),$(wildcard $(dir $(realpath $(NVCC)))../include/cuda.h))

lint: build/lint/format build/lint/cppcheck build/lint/includes $(tidy_stamps) $(header_stamps) \
	$(if $(and $(cuda_header),$(wildcard tests/cuda/check_api.c)),build/lint/cuda_api)

build/lint/cuda_api: tests/cuda/check_api.c cuda/device/api.h
	@mkdir -p $(@D)
	@$(CC) -std=gnu11 $(warnings) $(cppflags) -isystem $(dir $(cuda_header)) -fsyntax-only $<
	@touch $@

formatted := $(sources) $(hosted) trainer.c $(headers) $(tests) $(wildcard cuda/kernels/*.cu cuda/kernels/*.cuh tests/cuda/fake/*.cpp tests/cuda/fake/*.h tests/cuda/device/*.h) $(wildcard tests/clock.c tests/fuzz/*.c tests/bench/*.c tests/*/server.c tests/simulate/*.c tests/cuda/check_api.c)

# From the virtual environment, at one version: releases of clang-format disagree about details.
build/lint/format: $(formatted) .clang-format build/venv/ready
	@mkdir -p $(@D)
	@build/venv/bin/clang-format --dry-run -Werror $(formatted)
	@touch $@

format: build/venv/ready
	@build/venv/bin/clang-format -i $(formatted)

# The analyzer doesn't know that cmocka's assertions end a test.
build/lint/tests/%.tidy: tidy_off = --checks=-clang-analyzer-*

linted = $(@:build/lint/%.tidy=%)
define tidy
	@mkdir -p $(@D)
	@echo "lint $(linted).c"
	@clang-tidy --quiet --warnings-as-errors='*' $(tidy_off) $(linted).c -- -std=gnu11 $(cppflags) $(call flags_for,$(linted).c) \
		2>build/lint/$(linted).log || { cat build/lint/$(linted).log >&2; exit 1; }
	@touch $@
endef

build/lint/tests/simulate/%.tidy: build/simulate/tests/simulate/%.o .clang-tidy | $(packages)
	$(tidy)

build/lint/%.tidy: build/san/%.o .clang-tidy | $(packages)
	$(tidy)

# These complain about carving memory, about ranges that an assert states, and about results passed by pointer.
cppcheck_off := missingIncludeSystem invalidPointerCast invalidFunctionArg ctuuninitvar ctunullpointer \
	normalCheckLevelMaxBranches

build/lint/cppcheck: $(sources) trainer.c $(headers) $(simulator_sources) | $(packages)
	@mkdir -p $(@D)/cppcheck-work
	@echo "lint: cppcheck"
	@cppcheck --quiet --std=c11 --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
		$(cppcheck_off:%=--suppress=%) --cppcheck-build-dir=$(@D)/cppcheck-work -I. $(sources) trainer.c $(simulator_sources)
	@touch $@

build/lint/%.h.alone: %.h $(headers) build/san/flags $(musl_libs)
	@mkdir -p $(@D)
	@printf '#include "$*.h"\nextern int alone;\n' | $(CC) -std=gnu11 $(warnings) $(cppflags) -x c -fsyntax-only -
	@touch $@

build/lint/includes: $(sources) $(hosted) trainer.c $(headers) tests/lint/includes.awk
	@mkdir -p $(@D)
	@awk -f tests/lint/includes.awk $(sources) $(hosted) trainer.c $(filter-out tests/%,$(headers))
	@touch $@

# --- Housekeeping ------------------------------------------------------------------------------------------------------

clean:
	rm -rf build/product build/gpu build/san build/fuzz build/debug build/lint build/trainer build/trainer.debug build/version

distclean:
	rm -rf build

help:
	@echo "make [all]     build/trainer"
	@echo "make run       build, get data, train as config.json says; ARGS='--train_steps=1000' adds flags"
	@echo "make test      everything that checks it; T=name: only tests whose names contain name"
	@echo "make test-full the same with longer repeats"
	@echo "make lint      format, clang-tidy, cppcheck, headers, direction of includes; make format rewrites"
	@echo "make test-gpu  the GPU engine's tests on this machine's GPU, with compute-sanitizer where it is"
	@echo "make bench     figures beside those of other programs"
	@echo "make debug     build/debug/trainer with AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make fuzz      every fuzz target for FUZZ_SECONDS=$(FUZZ_SECONDS)"
	@echo "make ARCH=aarch64  the same program for that kind of processor: build/aarch64/build/trainer"
	@echo "make simulate  SEEDS=$(SEEDS) simulated clusters under faults, one after another"
	@echo "make simulate-teeth   bugs planted in it, one after another: are they noticed?"
	@echo "make simulate-coverage   which share of the lines of ps and net it runs"
	@echo "make mnist     download MNIST into DATA_DIR=$(DATA_DIR); MNIST_URL= sets the address"
	@echo "make vectors   remake the tests' reference figures"
	@echo "make install   to PREFIX=$(PREFIX) under DESTDIR=, and systemd's unit to UNITDIR=$(UNITDIR)"
	@echo "make clean     remove what was compiled; distclean: the libraries too (downloads stay in the cache)"
	@echo "Variables: DEPS_DIR= (unpacked upstream libraries), DEPS_CACHE= (downloads), CC="

.PHONY: all run data-if-possible mnist test test-full bench vectors lint format debug fuzz simulate simulate-teeth simulate-coverage install clean distclean help

-include $(objects:.o=.d) build/product/tests/clock.d $(bench_sources:%.c=build/product/%.d) $(bench_parts:.o=.d) $(san_objects:.o=.d) $(san_hosted:.o=.d) build/san/trainer.d $(unit_programs:=.d) $(test_servers:=.d) $(fake_objects:.o=.d) $(fake_plain:.o=.d) $(simulator_objects:.o=.d) $(simulated_objects:.o=.d) $(fuzz_objects:.o=.d) \
	$(fuzzers:%=build/fuzz/tests/fuzz/%.d)
