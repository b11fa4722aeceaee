# `make test` and what its whole-program tests are run with. Included by the Makefile.

T ?=

# The product with a wall clock that tests can set: see there.
build/clocked/trainer: build/product/tests/clock.o $(objects) $(musl_libs)
	@mkdir -p $(@D)
	@$(musl_cc) -o $@ $(filter %.o,$^) -Wl,--wrap=clock_gettime,--wrap=time -Lbuild/deps/lib $(link_with)

-include build/product/tests/clock.d

# With T=name: the unit-test programs and pytest's tests whose names contain it, without lint, fuzzing and simulation.
# Everything is built before anything runs, and the parts run one after the other: tests that measure time want the
# machine.
test_parts := $(unit_programs) $(test_servers) $(fake_driver) build/fake/libcuda.so.1 build/bench/ps_load \
	build/bench/gpu_bench build/trainer build/clocked/trainer build/venv/ready \
	$(if $(T),,lint $(fuzz_programs) build/simulate/simulate aarch64)

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

.PHONY: test test-full
