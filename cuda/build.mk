# The GPU engine's program, which build/trainer contains if there are nvcc and a compiler for glibc: kernels for every
# architecture, inside a program for the system's libc, inside the static one. Included by the Makefile.
#
# nvcc is searched in PATH and in its usual place; `make NVCC=` builds without it.

ifeq ($(origin NVCC),undefined)
NVCC := $(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
endif

# Code for each of these, and PTX of the last but two for later ones.
gpu_architectures := 75 80 86 87 89 90 100 120
gpu_ptx           := 90
gpu_most_bytes    := 1048576

gpu_missing := $(if $(findstring -gnu,$(shell $(CC) -dumpmachine)),,$(CC) does not compile for glibc)
gpu_missing := $(or $(gpu_missing),$(if $(NVCC),,there is no nvcc), \
	$(if $(wildcard cuda/kernels/kernels.cu),,there are no kernels))

# Spilled registers cost more than they save: an error, like every warning.
nvcc_flags := -std=c++17 -O3 -fmad=false -ftz=true --compress-mode=size --threads 2 -I. -isystem build/deps/include \
	-Werror all-warnings -Xptxas -warn-spills,-Werror \
	$(foreach arch,$(gpu_architectures),-gencode arch=compute_$(arch),code=sm_$(arch)) \
	-gencode arch=compute_$(gpu_ptx),code=compute_$(gpu_ptx)

# No canaries and no checked printf: old libcs have other symbols for them. Using a symbol that glibc 2.17 lacks is a
# link error, because the link only sees the stubs of cuda/helper/symbols. Old libcs run no constructors of such a
# program: there are none here.
helper_flags := -std=gnu11 -O2 -g -fPIE -fno-plt -ffunction-sections -fdata-sections -fno-stack-protector \
	-U_FORTIFY_SOURCE $(mathflags) $(warnings) $(if $(findstring aarch64,$(shell $(CC) -dumpmachine)),-mno-outline-atomics)
# On aarch64, whose pages may be 64 KiB, making memory read-only after relocation would take up to another page.
helper_relro := $(if $(findstring aarch64,$(shell $(CC) -dumpmachine)),norelro,relro)
helper_link  := -pie -nodefaultlibs -Wl,--gc-sections,-z,$(helper_relro),-z,now,-z,noexecstack,--as-needed -s \
	-Lbuild/gpu/stubs -ldl -lm -lc -lgcc

# What the two programs share.
helper_shared  := base/error.c ps/store/model.c ps/store/optimizer.c base/cpu.c base/kernels/kernels_reference.c
helper_objects := $(patsubst %.c,build/gpu/%.o,$(hosted) $(helper_shared)) build/gpu/kernels.o

ifeq ($(gpu_missing),)
$(call remember,build/gpu/flags,$(CC) $(helper_flags) $(cppflags))
$(call remember,build/gpu/nvcc,$(NVCC) $(nvcc_flags))

gpu_defines := -DGPU_PROGRAM='"build/gpu/trainer-gpu"' -DGPU_ARCHITECTURES='"$(gpu_architectures:%=sm_%)"'
build/product/cuda/payload.o build/san/cuda/payload.o: build/gpu/trainer-gpu
build/product/cuda/payload.o: defines = $(gpu_defines)
build/san/cuda/payload.o: san_flags := $(gpu_defines)
endif
$(call remember,build/gpu/payload,payload: $(gpu_defines))
build/product/cuda/payload.o build/san/cuda/payload.o: build/gpu/payload

build/gpu/kernels.fatbin: cuda/kernels/kernels.cu build/gpu/nvcc | $(musl_libs)
	@mkdir -p $(@D)
	@echo "nvcc $<"
	@$(NVCC) $(nvcc_flags) -fatbin -MD -MF build/gpu/kernels.d -MT $@ -o $@ $<

# A cross build takes the kernels of the build for this machine: they are the same.
gpu_fatbin := $(or $(GPU_FATBIN),build/gpu/kernels.fatbin)

build/gpu/kernels.o: $(gpu_fatbin)
	@printf '%s\n' '.section .rodata' '.balign 64' '.globl gpu_kernels, gpu_kernels_end' \
		'.hidden gpu_kernels, gpu_kernels_end' 'gpu_kernels: .incbin "$<"' 'gpu_kernels_end:' \
		'.section .note.GNU-stack,"",%progbits' | \
		$(CC) -x assembler -c -o $@ -

build/gpu/%.o: %.c build/gpu/flags | $(musl_libs)
	@mkdir -p $(@D)
	@echo "cc $< (GPU)"
	@$(CC) $(helper_flags) $(cppflags) $(call flags_for,$<) -MMD -MP -c -o $@ $<

build/gpu/stubs/made: cuda/helper/stubs cuda/helper/symbols
	@CC="$(CC)" cuda/helper/stubs cuda/helper/symbols $(@D)
	@touch $@

build/gpu/trainer-gpu: $(helper_objects) build/gpu/stubs/made
	@$(CC) -o $@ $(helper_objects) $(helper_link)
	@echo "build: $@, $$(($$(wc -c <$@) / 1024)) KiB"
	@test $$(wc -c <$@) -le $(gpu_most_bytes) || { echo "$@ is larger than $(gpu_most_bytes) bytes" >&2; rm $@; exit 1; }

-include $(helper_objects:.o=.d)
