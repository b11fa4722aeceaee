# make ARCH=aarch64: cross-compiles the program for another processor, in a separate tree of links to this one:
# build/aarch64/build/trainer. All rules are the Makefile's.

cross_architectures := aarch64
linked := Makefile LICENSE README.md docs config.json trainer.c $(rooms) deploy tests

# After the others: two package managers at once would conflict.
$(cross_architectures:%=build/packages-cross-%): build/packages-cross-%: base/deps/packages | $(packages)
	@mkdir -p build
	@base/deps/packages build cross-$*
	@touch $@

# This make's command line is not passed on: the libraries' makefiles use ARCH too.
cross_fatbin := $(if $(gpu_missing),,$(CURDIR)/$(gpu_fatbin))

$(cross_architectures): %: build/packages-cross-% $(if $(cross_fatbin),$(gpu_fatbin))
	@mkdir -p build/$*
	@for each in $(linked); do ln -sfn ../../$$each build/$*/$$each; done
	+@env -u MAKEFLAGS -u ARCH CROSS_CC=$*-linux-gnu-gcc GPU_FATBIN=$(cross_fatbin) $(MAKE) -C build/$* build/trainer

.PHONY: $(cross_architectures)
