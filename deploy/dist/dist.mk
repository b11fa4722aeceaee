# make dist: the files of a release, in build/dist; the same commit and compilers give the same bytes on any machine.
# Included by the Makefile.

# The release signing key (trainer keygen --operator=FILE); without it SHA256SUMS is not signed.
KEY ?=
# The maintainer of the Debian packages, as NAME <ADDRESS>; by default the author of the commit.
MAINTAINER ?=

# On other architectures, for that architecture only.
dist_others := $(if $(filter x86_64,$(machine)),$(cross_architectures))
dist_trees  := $(machine)=. $(foreach each,$(dist_others),$(each)=build/$(each))

dist: build/trainer $(dist_others)
	@deploy/dist/pack --out=build/dist --version='$(shell cat build/version)' --libraries='musl $(libraries)' \
		$(if $(gpu_missing),,--nvcc='$(NVCC)') $(if $(KEY),--key='$(KEY)') \
		$(if $(MAINTAINER),--maintainer='$(MAINTAINER)') $(dist_trees)

.PHONY: dist
