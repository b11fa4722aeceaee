# make ARCH=aarch64: the same program for another kind of processor, by a cross compiler, in a tree of its own that
# consists of links to this one: build/aarch64/build/trainer. All rules are the Makefile's.

cross_architectures := aarch64
linked := Makefile LICENSE README.md docs config.json trainer.c $(rooms) deploy tests

# After the others: two package managers at once would conflict.
$(cross_architectures:%=build/packages-cross-%): build/packages-cross-%: base/deps/packages | $(packages)
	@mkdir -p build
	@base/deps/packages build cross-$*
	@touch $@

# Nothing of this make's command line is passed on: the libraries' own makefiles have an ARCH too.
cross_fatbin := $(if $(gpu_missing),,$(CURDIR)/$(gpu_fatbin))

$(cross_architectures): %: build/packages-cross-% $(if $(cross_fatbin),$(gpu_fatbin))
	@mkdir -p build/$*
	@for each in $(linked); do ln -sfn ../../$$each build/$*/$$each; done
	+@env -u MAKEFLAGS -u ARCH CROSS_CC=$*-linux-gnu-gcc GPU_FATBIN=$(cross_fatbin) $(MAKE) -C build/$* build/trainer

.PHONY: $(cross_architectures)
