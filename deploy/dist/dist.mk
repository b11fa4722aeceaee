# make dist: what a release consists of, in build/dist, the same bytes wherever this commit is built with the same
# compilers. Included by the Makefile.

# The secret key of those who make releases (trainer keygen --operator=FILE); without it SHA256SUMS is not signed.
KEY ?=
# Whom the Debian packages name, as NAME <ADDRESS>; without it, who made the commit.
MAINTAINER ?=

# On another kind of machine, for that kind alone.
dist_others := $(if $(filter x86_64,$(machine)),$(cross_architectures))
dist_trees  := $(machine)=. $(foreach each,$(dist_others),$(each)=build/$(each))

dist: build/trainer $(dist_others)
	@deploy/dist/pack --out=build/dist --version='$(shell cat build/version)' --libraries='musl $(libraries)' \
		$(if $(gpu_missing),,--nvcc='$(NVCC)') $(if $(KEY),--key='$(KEY)') \
		$(if $(MAINTAINER),--maintainer='$(MAINTAINER)') $(dist_trees)

.PHONY: dist
