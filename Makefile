# trainer: `make run` builds and trains, `make test` tests it, `make help` lists the rest.
#
# The product is one static PIE on musl, whose compiler wrapper base/deps/build makes (build/deps/musl/bin/musl-cc).
# Unit tests, `debug` and `fuzz` compile the same sources with sanitizers and the system's libc. Everything is built
# under build/; downloads are kept in the user's cache folder (base/deps/fetch). Tests, lint and benchmarks are defined
# in tests/*.mk, the GPU engine's program in cuda/build.mk.

VERSION   := 0.1.0
# The commit of that version, where git can't tell.
DATE      := November 23, 2026
CC        := $(or $(CROSS_CC),gcc)
CLANG     := clang
PREFIX    ?= /usr/local
UNITDIR   ?= $(PREFIX)/lib/systemd/system
DESTDIR   ?=
ARGS      ?=
ARCH      ?=
DATA_DIR  ?= data

# Folder of unpacked upstream sources, instead of Debian's source packages: see docs/building.md.
DEPS_DIR  ?=
export DEPS_DIR DEPS_CACHE DEPS_SUITES MNIST_URL CC

# All processors, unless -j says otherwise.
ifeq ($(filter -j%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif
MAKEFLAGS += --no-print-directory
.DELETE_ON_ERROR:
.SECONDARY:
# Without the built-in rules, which make would try on every included file, for seconds. (MAKEFLAGS += -r would affect
# the libraries' makefiles, which need theirs.)
.SUFFIXES:
%:: %,v
%:: RCS/%,v
%:: RCS/%
%:: s.%
%:: SCCS/s.%
SHELL := /bin/sh
empty :=
comma := ,

all: $(or $(ARCH),build/trainer)

# --- What is compiled ---

rooms   := base net observe ps worker cuda serve
# The GPU engine's own process runs on glibc, and is not part of the static program: cuda/build.mk.
hosted  := $(wildcard cuda/device/*.c cuda/helper/*.c)
# Nor are files for the instructions of another kind of processor than CC compiles for. (Before the compiler is
# installed, it is this machine's.)
machine := $(firstword $(subst -, ,$(or $(shell $(CC) -dumpmachine 2>/dev/null),$(shell uname -m))))
foreign := $(if $(filter x86_64,$(machine)),,%_avx2.c %_avx512.c) $(if $(filter aarch64,$(machine)),,%_neon.c)
sources := $(filter-out $(hosted) $(foreign),$(wildcard $(foreach room,$(rooms),$(room)/*.c $(room)/*/*.c \
	$(room)/*/*/*.c)))
headers := $(wildcard $(foreach room,$(rooms),$(room)/*.h $(room)/*/*.h $(room)/*/*/*.h))

warnings := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wundef \
	-Wcast-qual -Wwrite-strings -Wvla -Werror

# No contraction: the reference and every kernel round alike, so that results do not depend on the compiler's choice.
mathflags := -ffp-contract=off -fno-math-errno -fno-trapping-math
# mbedTLS and its callers see the same configuration; the headers that it includes for us to fill in lie beside it.
mbedtls_config := net/tls/mbedtls_config.h
cppflags  := -I. -iquote net/tls -isystem build/deps/include -D_GNU_SOURCE -DMBEDTLS_CONFIG_FILE='"$(mbedtls_config)"'
# Debuggers find unwind tables in trainer.debug; nothing in the program needs them.
product   := -std=gnu11 -O3 -g $(mathflags) -ffunction-sections -fdata-sections -fstack-protector-strong \
	-fstack-clash-protection $(if $(filter aarch64,$(machine)),-mbranch-protection=standard) \
	-fno-asynchronous-unwind-tables -ffile-prefix-map=$(CURDIR)/= $(warnings)

# Not every test looks at cmocka's `state`. Files named for an instruction set are compiled for it; everything else runs
# on any x86-64.
flags_for = $(if $(filter tests/%,$(1)),-Wno-unused-parameter) \
	$(if $(filter %_avx2.c,$(1)),-mavx2 -mfma) \
	$(if $(filter %_avx512.c,$(1)),-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mbmi2)

# Notes record what a build depends on besides files: each note is a file that is written, while this Makefile is read,
# only if its content changes. So other flags, or another commit, rebuild what depends on them. (What make 4.3 reads
# from a file may end with its newline, or not.)
differ   = $(subst x$(1),,x$(2))$(subst x$(2),,x$(1))
remember = $(if $(call differ,$(strip $(file <$(1))),$(strip $(2))),$(shell mkdir -p $(dir $(1)))$(file >$(1),$(2)))

libraries := cjson libsodium zlib libspng libjpeg-turbo llhttp mbedtls $(if $(filter x86_64,$(machine)),intel-ipsec-mb)
musl_libs   := $(foreach library,$(libraries),build/deps/$(library).musl)
native_libs := $(foreach library,$(libraries),build/deps/$(library).native)
# mbedTLS leaves this to net/tls/x25519.c, which is linked by name because the archive that contains it comes first.
x25519      := mbedtls_ecp_mul mbedtls_ecp_mul_restartable
link_with   := $(x25519:%=-Wl,--wrap=%) -Wl,-u,__wrap_mbedtls_ecp_mul -lmbedtls -lcjson -lllhttp -lsodium -lspng \
	-ljpeg -lz $(if $(filter x86_64,$(machine)),-lintel-ipsec-mb) -lm -lpthread

$(call remember,build/product/flags,$(product) $(cppflags) $(link_with))
# The same number of digits of a commit in every clone.
$(call remember,build/version,$(or \
	$(shell git describe --tags --match 'v[0-9]*' --abbrev=10 --dirty 2>/dev/null | sed 's/^v//'),$(VERSION)$(shell \
	git describe --always --abbrev=10 --dirty --exclude '*' 2>/dev/null | sed 's/^/+g/')))
date = $(or $(shell LC_ALL=C git log -1 --format=%cd --date=format:'%B %-d, %Y' 2>/dev/null),$(DATE))

# --- Third-party libraries: base/deps fetches and builds them ---

# System packages: only those that the goals need, checked once, so that one line lists all that are missing.
goals    := $(or $(MAKECMDGOALS),all)
tested   := $(filter test test-full test-units test-fuzz test-programs test-alone test-deploy test-repeat,$(goals))
purposes := build $(if $(filter dist,$(goals)),dist) \
	$(if $(tested)$(filter lint mutants test-threads test-jitter build/san/% build/tsan/% build/lint/%,$(goals)),test) \
	$(if $(tested)$(filter lint build/lint/%,$(goals)),lint) \
	$(if $(filter test-full test-deploy,$(goals)),deploy) \
	$(if $(tested)$(filter fuzz fuzz-long build/fuzz/%,$(goals)),fuzz) \
	$(if $(tested)$(filter lint format bench vectors mutants test-threads fuzz-long fuzz-coverage build/venv% \
		build/lint/%,$(goals)),python) \
	$(if $(filter bench,$(goals)),bench)
packages := build/packages-$(subst $(empty) ,-,$(strip $(purposes)))

$(packages): base/deps/packages
	@mkdir -p build
	@base/deps/packages $(purposes)
	@touch $@

# Both scripts check again, by content, whether there is anything to do: a fresh checkout must not rebuild for minutes.
build/deps/%.source: base/deps/fetch base/deps/digests | $(packages)
	@base/deps/fetch $* build/deps/source/$*
	@touch $@

build/deps/musl.musl: build/deps/musl.source base/deps/build
	+@MAKE="$(MAKE)" base/deps/build musl musl build/deps/source/musl build/deps
	@touch $@

$(musl_libs): build/deps/%.musl: build/deps/%.source build/deps/musl.musl base/deps/build
	+@MAKE="$(MAKE)" MBEDTLS_CONFIG=$(mbedtls_config) \
		base/deps/build $* musl build/deps/source/$* build/deps
	@touch $@

# It inflates with zlib, whose headers it needs.
build/deps/libspng.musl: build/deps/zlib.musl

# After the musl flavour, which puts the headers in place.
$(native_libs): build/deps/%.native: build/deps/%.musl
	+@MAKE="$(MAKE)" MBEDTLS_CONFIG=$(mbedtls_config) \
		base/deps/build $* native build/deps/source/$* build/deps
	@touch $@

build/deps/mbedtls.musl: $(mbedtls_config) $(wildcard $(dir $(mbedtls_config))*_alt.h)

# --- The GPU engine's program, which the product carries ---

include cuda/build.mk

# --- The page that members serve ---

include observe/page/page.mk

include base/deps/cross.mk

# --- The product ---

objects := $(sources:%.c=build/product/%.o) build/product/trainer.o
musl_cc := build/deps/musl/bin/musl-cc

# Debugging information is kept beside the program, which refers to it by a link. There is no build id: it would
# distinguish programs by the folder that they were built in, which only this information contains.
build/trainer: build/trainer.debug
	@$(shell $(CC) -print-prog-name=objcopy) --strip-debug --add-gnu-debuglink=$< $< $@.new
	@mv $@.new $@
	@echo "build: $@, $$(($$(wc -c <$@) / 1024)) KiB$(if $(gpu_missing), without the GPU engine: $(gpu_missing))"

# Libraries bring unwind tables along, and nothing here unwinds.
build/product/discard.ld:
	@mkdir -p $(@D)
	@echo 'SECTIONS { /DISCARD/ : { *(.eh_frame) } } INSERT BEFORE .eh_frame;' >$@

build/trainer.debug: $(objects) $(musl_libs) build/product/flags build/product/discard.ld
	@$(musl_cc) -o $@ $(objects) -Lbuild/deps/lib $(link_with) -Wl,--build-id=none \
		-Wl,-z,pack-relative-relocs,--no-eh-frame-hdr,-T,build/product/discard.ld

# Code that runs once a second, or for people, should be small rather than fast.
$(patsubst %.c,build/product/%.o,$(filter base/cli/% base/config/% base/process/% base/trust.c net/credentials.c \
	net/keygen.c net/operator_key.c net/revocation.c net/tls/web.c observe/% ps/checkpoint/folder.c \
	ps/checkpoint/safetensors.c ps/rollout/% ps/server/rollouts.c ps/status.c serve/drift.c serve/model.c \
	serve/request_log.c serve/serve.c worker/checkpoints.c worker/data/commands.c worker/data/dataset.c \
	worker/data/folders.c worker/data/table/schema.c worker/data/table/survey_schema.c worker/evaluation/kept_rows.c \
	worker/export/dashboard.c worker/export/eval.c worker/export/explain.c worker/export/export.c \
	worker/export/first_layer.c worker/export/inspect.c worker/export/onnx.c worker/export/trained.c worker/follow.c \
	worker/initial.c worker/observed.c worker/remote/chief.c worker/remote/heartbeat.c worker/remote/live_config.c \
	worker/remote/operator/% worker/remote/own_rows.c worker/remote/place.c worker/report.c worker/tune/%,$(sources)))\
: small := -Os

build/product/%.o: %.c build/product/flags $(musl_libs)
	@mkdir -p $(@D)
	@echo "cc $<"
	@$(musl_cc) $(product) $(small) $(cppflags) $(call flags_for,$<) $(defines) -MMD -MP -c -o $@ $<

build/product/base/version.o: build/version
build/product/base/version.o: defines = -DTRAINER_VERSION='"$(shell cat build/version)"' \
	-DTRAINER_DATE='"$(date)"' \
	-DTRAINER_LIBC='"musl $(shell cat build/deps/source/musl/.trainer-version)"'

-include $(objects:.o=.d)

# --- Tests, lint and benches ---

include tests/unit.mk tests/threads.mk tests/simulate.mk tests/cuda.mk tests/fuzz.mk tests/mutants.mk tests/bench.mk \
	tests/lint.mk tests/test.mk

# --- Running ---

# Trains on MNIST in DATA_DIR, which it downloads; without a network, on synthetic digits, as the line it prints says.
# ARGS that name other data count instead.
run: build/trainer | $(packages)
	@data=--data_dir=$(DATA_DIR); \
	case " $(ARGS) " in *" --data_dir="*|*" --data_source="*) data= ;; esac; \
	if [ "$$data" ] && ! ls $(DATA_DIR)/train-images*idx3-ubyte* >/dev/null 2>&1 && \
			! { base/deps/packages run && base/deps/mnist $(DATA_DIR); }; then \
		data=--data_source=synthetic; \
		echo "make run: no MNIST, so it trains on synthetic digits: $$data"; \
	fi; \
	set -x; build/trainer --config=config.json $$data $(ARGS)

mnist:
	@base/deps/packages run
	@base/deps/mnist $(DATA_DIR)

install: build/trainer
	@PROGRAM=$< PREFIX='$(PREFIX)' UNITDIR='$(UNITDIR)' DESTDIR='$(DESTDIR)' deploy/install

# --- Releases ---

include deploy/dist/dist.mk

# --- Housekeeping ---

clean:
	rm -rf build/product build/gpu build/san build/tsan build/fuzz build/fuzz-coverage build/debug build/lint \
		build/trainer build/trainer.debug build/version

distclean:
	rm -rf build

help:
	@echo "make [all]     build/trainer"
	@echo "make run       build, get data, train as config.json says; ARGS='--train_steps=1000' adds flags"
	@echo "make test      all tests and checks; T=name: only tests whose names contain name"
	@echo "make test-full the same, with more repetitions"
	@echo "make test-repeat  make test, RUNS=20 times beside LOAD=4 busy loops: what fails, and how often"
	@echo "make test-jitter  the unit tests, whose threads are slow now and then: which rely on fast ones?"
	@echo "make test-tlsfuzzer  runs tlsfuzzer's TLS 1.3 scripts; TLSFUZZER=folder with a copy of it"
	@echo "make lint      format, clang-tidy, cppcheck, headers, direction of includes; make format reformats"
	@echo "make test-gpu  the GPU engine's tests on this machine's GPU, with compute-sanitizer if installed"
	@echo "make gpu-kit   these tests and benchmarks as an archive, for a machine with a driver and without a compiler"
	@echo "make bench     benchmarks against other programs"
	@echo "make debug     build/debug/trainer with AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make debug SAN=thread   build/tsan/trainer with ThreadSanitizer"
	@echo "make test-threads   unit tests and clusters under ThreadSanitizer"
	@echo "make fuzz      every fuzz target for FUZZ_SECONDS=$(FUZZ_SECONDS)"
	@echo "make fuzz-long HOURS=$(HOURS)   each of them for that long, or T=name; keeps the inputs it finds"
	@echo "make fuzz-coverage   the lines of the decoders that their inputs reach"
	@echo "make ARCH=aarch64  cross-compiles the program: build/aarch64/build/trainer"
	@echo "make simulate  SEEDS=$(SEEDS) simulated clusters under faults, one after another"
	@echo "make simulate-mutants   plants bugs, one after another: does it notice them?"
	@echo "make simulate-coverage   the share of the lines of ps and net that it runs"
	@echo "make mutants   COUNT=$(COUNT) changes in each of ROOM='ps net worker': do unit tests notice?"
	@echo "make mnist     download MNIST into DATA_DIR=$(DATA_DIR); MNIST_URL= sets the address"
	@echo "make vectors   regenerate the tests' reference values"
	@echo "make dist      archives, Debian packages, container images, a bill of materials in build/dist; KEY= signs"
	@echo "make install   program, manual pages, completion to PREFIX=$(PREFIX) under DESTDIR=, systemd units to UNITDIR="
	@echo "make clean     remove build output; distclean: the libraries too (downloads stay in the cache)"
	@echo "Variables: DEPS_DIR= (unpacked upstream libraries), DEPS_CACHE= (downloads), CC="

.PHONY: all run mnist install clean distclean help
