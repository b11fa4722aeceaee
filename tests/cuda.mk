# The GPU engine's tests: a fake driver, processes with a fake device, and the real ones. Included by the Makefile.

# --- A driver without a GPU ---

# libcuda.so.1 for tests (tests/cuda/fake/driver.cpp lists its options): the real kernels, compiled for this CPU. With
# sanitizers for the unit tests; without, in build/fake, for programs that have none.
CXX          := g++
fake_sources := $(wildcard tests/cuda/fake/*.cpp)
fake_objects := $(fake_sources:%.cpp=build/san/%.o)
fake_plain   := $(fake_sources:%.cpp=build/fake/%.o)
fake_flags   := -std=c++17 -g -fPIC -fvisibility=hidden -Wall -Wextra -Werror -Wno-unknown-pragmas \
	$(mathflags) $(if $(shell grep -m1 -w fma /proc/cpuinfo 2>/dev/null),-mfma)
fake_san     := -O2 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
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

-include $(fake_objects:.o=.d) $(fake_plain:.o=.d)

# --- Processes without a GPU ---

# For the tests' processes, which are on no list of programs.
-include $(patsubst %,build/san/%.d,cuda/helper/main tests/cuda/standin tests/cuda/plain_driver \
	tests/worker/gpu/reference_device)

# A process with a fake device, for tests of everything between it and the program.
build/san/tests/cuda/standin: build/san/tests/cuda/standin.o build/san/tests/cuda/plain_driver.o \
		build/san/cuda/helper/main.o build/san/base/error.o
	@$(CC) $(sanitized) -o $@ $^

build/san/tests/cuda/test_client: build/san/tests/cuda/standin

# Time passes faster while a command hangs (tests/cuda/hung.h).
hung_link := $(addprefix -Wl$(comma)--wrap=,clock_gettime gpu_use_begin gpu_use_end)
build/san/tests/cuda/test_client build/san/tests/worker/gpu/test_engine: private link_with += $(hung_link)

# Without sanitizers, which open files and start threads themselves.
build/san/tests/cuda/launched: tests/cuda/launched.c
	@mkdir -p $(@D)
	@$(CC) -O1 $(warnings) -D_GNU_SOURCE -o $@ $<

build/san/tests/cuda/test_launch: build/san/tests/cuda/launched

# A process whose device is the CPU engine.
build/san/tests/worker/gpu/reference_process: build/san/tests/worker/gpu/reference_device.o \
		build/san/tests/cuda/plain_driver.o build/san/cuda/helper/main.o \
		build/san/rooms.a $(native_libs)
	@$(CC) $(sanitized) -o $@ $(filter %.o,$^) build/san/rooms.a -Lbuild/deps/native/lib $(link_with)

build/san/tests/worker/gpu/test_engine: build/san/tests/worker/gpu/reference_process

# --- On a machine with a GPU ---

# The device's unit tests as plain programs with the real kernels, for compute-sanitizer to check; most of the program
# is compiled for the simulator already.
gpu_tests        := $(patsubst tests/cuda/device/%.c,build/gpu/%,$(wildcard tests/cuda/device/test_*.c))
gpu_test_parts   := $(patsubst %.c,build/gpu/%.o,$(filter-out %/main.c,$(hosted)) $(filter $(unsimulated),$(sources)))
gpu_test_objects := $(gpu_tests:build/gpu/%=build/gpu/tests/cuda/device/%.o) $(gpu_test_parts)

$(gpu_tests): build/gpu/%: build/gpu/tests/cuda/device/%.o $(gpu_test_parts) build/gpu/kernels.o \
		build/simulate/rooms.a $(native_libs)
	@$(CC) -o $@ $(filter %.o,$^) build/simulate/rooms.a -Lbuild/deps/native/lib -lcmocka $(link_with) -ldl

-include $(gpu_test_objects:.o=.d)

test-gpu: build/trainer $(gpu_tests) build/venv/ready
	@tests/cuda/run

# What a machine with a driver, but without a compiler, needs for that: unpack it there, and call tests/cuda/run.
gpu_kit := build/trainer $(gpu_tests) build/bench/gpu_bench tests/cuda/run tests/units tests/ports.py \
	tests/bench/gpu.py tests/bench/figures.py tests/bench/peers/torch_gpu.py

build/gpu-kit.tar.gz: $(gpu_kit)
	@tar -czf $@ $(gpu_kit)
	@echo "build: $@, $$(($$(wc -c <$@) >> 20)) MiB; on a machine with a GPU: tar -xzf gpu-kit.tar.gz &&" \
		"tests/cuda/run --bench --seconds=480"

gpu-kit: build/gpu-kit.tar.gz

.PHONY: fake test-gpu gpu-kit
