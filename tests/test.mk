# `make test` and the environment of its whole-program tests. Included by the Makefile.

T ?=

# The product with a wall clock that tests can set (tests/clock.c).
build/clocked/trainer: build/product/tests/clock.o $(objects) $(musl_libs)
	@mkdir -p $(@D)
	@$(musl_cc) -o $@ $(filter %.o,$^) -Wl,--wrap=clock_gettime,--wrap=time -Lbuild/deps/lib $(link_with)

-include build/product/tests/clock.d

# The next version of the product: one more key of the job (tests/other_key, at the end of the table), and a protocol
# version more, with one more field of a message (see tests/test_mixed.py). Only the files that know the key, the
# versions and the field are compiled again. The key has no field of its own, and the message isn't the largest, so that
# all other files see the same structs.
other_made := base/config/keys net/message net/handshake ps/rollout/participant worker/remote/heartbeat \
	worker/remote/transfer worker/remote/operator/rollout
other_net  := build/other/net/message.h build/other/net/message_table.h

build/other/base/config/keys.c: base/config/keys.c tests/other_key
	@mkdir -p $(@D)
	@sed '/^    {\.section = NULL}/e cat tests/other_key' $< >$@
	@grep -q of_tests $@

build/other/net/message.h: net/message.h
	@mkdir -p $(@D)
	@sed 's/PROTOCOL_VERSION_MAX = 1,/PROTOCOL_VERSION_MAX = 2,/' $< >$@
	@grep -q 'MAX = 2' $@

build/other/net/message_table.h: net/message_table.h
	@mkdir -p $(@D)
	@sed -e 's/^#define MESSAGE_FIELDS_heartbeat(FIELD)/& OLDER_FIELDS(FIELD) FIELD(U64, of_tests, 0, "")\
	#define OLDER_FIELDS(FIELD)/' -e 's/^#define MESSAGE_ADDITIONS(ADDITION)/& ADDITION(heartbeat, of_tests, 2)/' $< >$@
	@test "$$(grep -c of_tests $@)" = 2

build/other/%.o: %.c $(other_net) build/product/flags $(musl_libs)
	@mkdir -p $(@D)
	@$(musl_cc) $(product) -iquote build/other $(cppflags) -MMD -MP -c -o $@ $<

build/other/base/config/keys.o: build/other/base/config/keys.c build/product/flags $(musl_libs)
	@$(musl_cc) $(product) $(cppflags) -c -o $@ $<

build/other/trainer: $(other_made:%=build/other/%.o) $(objects) $(musl_libs)
	@$(musl_cc) -o $@ $(other_made:%=build/other/%.o) $(filter-out $(other_made:%=build/product/%.o),$(objects)) \
		-Lbuild/deps/lib $(link_with)

-include $(other_made:%=build/other/%.d)

# With T=name: the unit-test programs and pytest's tests whose names contain it, without lint, fuzzing and simulation.
# Everything is built before anything runs: tests that measure time need the machine.
programs_want := build/trainer build/clocked/trainer build/other/trainer build/bench/ps_load build/bench/gpu_bench \
	build/fake/libcuda.so.1 build/constant_time $(page_files) $(test_servers) build/venv/ready build/venv-mutants/ready \
	build/venv-deploy/ready build/venv-dist/ready \
	$(if $(T),,aarch64 build/tests.compiled)
test_wants    := $(unit_programs) $(fake_driver) $(programs_want) $(if $(T),,$(fuzz_programs) $(simulation)/simulate) \
	$(if $(T)$(gpu_missing),,$(gpu_tests))

# Cheap ones first. What waits for processes and what computes run side by side; those that measure time, alone.
ifeq ($(T),)
run_tests := tests/run "test-units test-programs & lint test-fuzz simulate" test-alone
else
run_tests := tests/some "$(T)" $(unit_programs)
endif

test: $(test_wants)
	@$(run_tests)

# Which tests fail how often on a busy machine?
RUNS ?= 20
LOAD ?= 4
test-repeat: $(test_wants)
	@tests/repeat $(RUNS) $(LOAD) $(run_tests)

# Which unit tests rely on threads that are never slow? Each run makes others wait; TEST_SEED= repeats its choice.
build/san/jitter.so: tests/jitter.c tests/random.h build/san/flags
	@mkdir -p $(@D)
	@$(CC) -std=gnu11 -O1 -g $(warnings) $(cppflags) -shared -fPIC -o $@ $< -ldl

test-jitter: $(unit_programs) $(fake_driver) build/san/jitter.so
	@UNIT_WRAPPER="env LD_PRELOAD=$$($(CC) -print-file-name=libasan.so):$(CURDIR)/build/san/jitter.so" \
		UNIT_LOGS=build/san/jitter tests/units "$(T)" $(unit_programs)

test-full: export TRAINER_TEST_FULL = 1
test-full: export FUZZ_TEST = 60
test-full: export SEEDS = 10000
test-full: export SHORTAGES = 3440
test-full: export ROLLOUTS = 400
ifeq ($(T),)
test-full: run_tests += test-deploy
endif
test-full: build/venv-installers/ready
test-full: test

test-units: $(unit_programs) $(fake_driver)
	@tests/units "$(T)" $(unit_programs)

test-fuzz: $(fuzz_programs)
	@tests/fuzz/run $(FUZZ_TEST) $(fuzzers)

# Several tests per processor, because most wait for processes more than they compute. Plugins that no test uses would
# take each of them seconds to load.
processors := $(or $(shell nproc 2>/dev/null),2)
pytest     := env -u PYTHONDONTWRITEBYTECODE build/venv/bin/python -m pytest -p no:cacheprovider -p no:schemathesis \
	-p no:hypothesispytest -p no:anyio -rfEs --durations=20
test-programs: $(programs_want)
	@$(pytest) -m "not alone and not races and not deploy" -n $$(($(processors) * 4)) --dist loadgroup tests

# Compiling the tests takes pytest seconds, in each of its processes: do it once, and keep the result beside the source
# even if the environment tells Python to keep nothing.
build/tests.compiled: $(wildcard tests/*.py) build/venv/ready
	@echo "python: tests"
	@$(pytest) --collect-only -q tests >/dev/null || :
	@touch $@

# Tests that run other projects' schedulers and installers.
test-deploy: $(programs_want) build/venv-installers/ready
	@$(pytest) -m deploy tests

test-alone: $(programs_want)
	@$(pytest) -m alone $$(grep -lE 'mark\.alone\b' tests/test_*.py)

# tlsfuzzer's scripts for TLS 1.3, from a copy in the folder TLSFUZZER: it is in no package registry. The table that it
# prints is in tests/net/tls/TLSFUZZER.md.
TLSFUZZER ?=
test-tlsfuzzer: build/trainer build/san/tests/net/tls/peer build/venv/ready
	@test -d "$(TLSFUZZER)/scripts" || { echo "make test-tlsfuzzer TLSFUZZER=folder: a copy of tlsfuzzer" >&2; exit 1; }
	@rm -f build/tlsfuzzer.key; build/trainer keygen --out=build/tlsfuzzer.key >/dev/null
	@build/venv/bin/python tests/net/tls/run_tlsfuzzer.py "$(TLSFUZZER)" build/san/tests/net/tls/peer \
		build/tlsfuzzer.key $(T)

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

.PHONY: test-deploy test test-full test-repeat test-jitter test-units test-fuzz test-programs test-alone test-tlsfuzzer
