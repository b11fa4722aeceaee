# make dist: the files of a release, in build/dist, the same bytes wherever this commit is built with the same
# compilers. Included by the Makefile.

# The secret key of the releases' makers (trainer keygen --operator=FILE); without it SHA256SUMS is not signed.
KEY ?=
# The maintainer of the Debian packages, as NAME <ADDRESS>; by default the author of the commit.
MAINTAINER ?=

# On another kind of machine, for that kind only.
dist_others := $(if $(filter x86_64,$(machine)),$(cross_architectures))
dist_trees  := $(machine)=. $(foreach each,$(dist_others),$(each)=build/$(each))

dist: build/trainer $(dist_others)
	@deploy/dist/pack --out=build/dist --version='$(shell cat build/version)' --libraries='musl $(libraries)' \
		$(if $(gpu_missing),,--nvcc='$(NVCC)') $(if $(KEY),--key='$(KEY)') \
		$(if $(MAINTAINER),--maintainer='$(MAINTAINER)') $(dist_trees)

.PHONY: dist
