# Static checks. Included by the Makefile.

lint_headers := $(headers) $(filter-out tests/cuda/fake/%,$(wildcard tests/*/*.h tests/*/*/*.h))
# Part of no unit-test program.
test_parts_c := $(wildcard tests/clock.c tests/jitter.c tests/locks.c tests/fuzz/*.c tests/bench/*.c tests/*/server.c \
	tests/*/*/peer.c tests/*/*/constant_time.c tests/simulate/*.c)

# A file is checked again when its object was made again, which is when it or one of its headers has changed.
tidy_stamps   := $(patsubst %.c,build/lint/%.tidy,$(sources) $(hosted) trainer.c $(tests) $(test_parts_c))
# That a header can stand alone its own .c file shows, which includes it first (tests/lint/includes.awk). Templates that
# a kernel file includes after choosing its instruction set (*_loops.h) can't.
header_stamps := $(patsubst %,build/lint/%.alone,$(filter-out %_loops.h $(sources:.c=.h),$(lint_headers)))

# Our prototypes of the driver API compared with a toolkit's.
cuda_header := $(if $(NVCC),$(wildcard $(dir $(realpath $(NVCC)))../include/cuda.h))

lint: build/lint/format build/lint/cppcheck build/lint/includes build/lint/circles build/lint/house \
	$(tidy_stamps) $(header_stamps) $(if $(and $(cuda_header),$(wildcard tests/cuda/check_api.c)),build/lint/cuda_api)

build/lint/cuda_api: tests/cuda/check_api.c cuda/device/api.h
	@mkdir -p $(@D)
	@$(CC) -std=gnu11 $(warnings) $(cppflags) -isystem $(dir $(cuda_header)) -fsyntax-only $<
	@touch $@

formatted := $(sources) $(hosted) trainer.c $(lint_headers) $(tests) $(test_parts_c) $(wildcard cuda/kernels/*.cu \
	cuda/kernels/*.cuh tests/cuda/fake/*.cpp tests/cuda/fake/*.h tests/cuda/device/*.h tests/cuda/check_api.c)

# From the virtual environment, at one version: releases of clang-format disagree about details.
build/lint/format: $(formatted) .clang-format build/venv/ready
	@mkdir -p $(@D)
	@build/venv/bin/clang-format --dry-run -Werror $(formatted)
	@touch $@

format: build/venv/ready
	@build/venv/bin/clang-format -i $(formatted)

# The analyzer doesn't know that cmocka's assertions end a test, and not every test looks at its `state`. In the product
# it follows so many states of a function: with its usual 225,000 a few long functions take most of the time, a file
# takes five times as long, and it finds no more.
build/lint/tests/%.tidy: tidy_off = --checks=-clang-analyzer-*,-misc-unused-parameters
analyzed := -Xclang -analyzer-config -Xclang max-nodes=20000

linted = $(@:build/lint/%.tidy=%)
# What the compiler noted of the object that the stamp waits for: its rule, before those of its headers (-MP).
made   = $(<:.o=.d)
define tidy
	@mkdir -p $(@D)
	@echo "lint $(linted).c"
	@tests/lint/once "$$(sed '/\\$$/!q' $(made)) .clang-tidy base/deps/digests" \
		clang-tidy --quiet --warnings-as-errors='*' $(tidy_off) $(linted).c -- -std=gnu11 $(analyzed) $(cppflags) \
		$(call flags_for,$(linted).c) 2>build/lint/$(linted).log || { cat build/lint/$(linted).log >&2; exit 1; }
	@touch $@
endef

build/lint/tests/simulate/%.tidy: build/simulate/tests/simulate/%.o .clang-tidy | $(packages)
	$(tidy)

build/lint/%.tidy: build/san/%.o .clang-tidy | $(packages)
	$(tidy)

# These complain about carving memory, about ranges that an assert guarantees, about results passed by pointer, and
# about NULL after variadic arguments, which is a pointer in every C library that this is built with.
cppcheck_off := varFuncNullUB missingIncludeSystem invalidPointerCast invalidFunctionArg ctuuninitvar ctunullpointer \
	normalCheckLevelMaxBranches

# It checks a file once for each name that an #ifdef asks for, but for these: only base/memory.h asks for sanitizers,
# and nvcc compiles no C.
cppcheck_never := __CUDACC__ __SANITIZE_ADDRESS__ __SANITIZE_THREAD__ __has_feature

build/lint/cppcheck: $(sources) trainer.c $(lint_headers) $(simulator_sources) | $(packages)
	@mkdir -p $(@D)
	@echo "lint: cppcheck"
	@tests/lint/kept $(@D)/cppcheck-work tests/lint/once "$^" \
		cppcheck --quiet --std=c11 --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
		$(cppcheck_off:%=--suppress=%) $(cppcheck_never:%=-U%) --cppcheck-build-dir=$(@D)/cppcheck-work -I. \
		$(sources) trainer.c $(simulator_sources)
	@touch $@

build/lint/%.h.alone: %.h $(lint_headers) build/san/flags $(musl_libs)
	@mkdir -p $(@D)
	@printf '#include "$*.h"\nextern int alone;\n' | \
		$(CC) -std=gnu11 $(warnings) $(cppflags) $(call flags_for,$<) -x c -fsyntax-only -
	@touch $@

build/lint/includes: $(sources) $(hosted) trainer.c $(headers) tests/lint/includes.awk
	@mkdir -p $(@D)
	@awk -f tests/lint/includes.awk $(sources) $(hosted) trainer.c $(headers)
	@touch $@

product_files := $(sources) $(hosted) trainer.c $(headers) $(wildcard cuda/kernels/*.cu cuda/kernels/*.cuh)

with_includes := $(product_files) $(wildcard tests/simulate/*.[ch])
build/lint/circles: $(with_includes) tests/lint/circles.py tests/lint/house.py
	@mkdir -p $(@D)
	@python3 tests/lint/circles.py $(with_includes)
	@touch $@

# Scripts and makefiles too, for the length of their lines and the rules between their sections.
house_files := $(sort $(product_files) $(formatted) Makefile $(wildcard cuda/*.mk base/deps/*.mk tests/*.mk tests/*.py \
	tests/*/*.py deploy/dist/*.mk deploy/dist/*.py))

# Documents, for their words alone.
house_documents := net/PROTOCOL.md docs/security.md

build/lint/house: $(house_files) $(house_documents) tests/lint/house.py $(musl_libs)
	@mkdir -p $(@D)
	@python3 tests/lint/house.py --only=words $(house_documents)
	@python3 tests/lint/house.py --libc=build/deps/musl/lib/libc.a $(house_files)
	@touch $@

# Nothing else includes these: without them a changed header would leave a checked object as it was.
-include $(test_parts_c:%.c=build/san/%.d)

.PHONY: lint format
