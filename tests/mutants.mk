# Mutants: single changes of ps, net and the training loop. Do the unit tests of their room notice? Included by the
# Makefile.

ROOM  ?=
COUNT ?= 100
SEED  ?=
FILE  ?=

mutants: $(filter build/san/tests/ps/% build/san/tests/net/% build/san/tests/worker/%,$(unit_programs)) \
		$(simulation)/simulate build/venv-mutants/ready
	@build/venv-mutants/bin/python tests/mutants/mutants.py --count=$(COUNT) $(SEED:%=--seed=%) \
		$(if $(ROOM),--room="$(ROOM)") $(FILE:%=--file=%) $(filter build/san/%,$^)

.PHONY: mutants
