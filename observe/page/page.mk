# The pages that members and `trainer serve` serve: files compressed once, here. Included by the Makefile.

# Debian builds dygraphs; upstream's releases have it too.
dygraphs   := $(if $(DEPS_DIR),$(firstword $(wildcard $(DEPS_DIR)/dygraphs*/dist/dygraph.min.js) \
	$(DEPS_DIR)/dygraphs-VERSION/dist/dygraph.min.js),/usr/share/javascript/dygraphs/dygraph.min.js)
page_files := $(patsubst %,build/page/%.gz,index.html app.css app.js dygraph.js \
	try.html try.css try.js openapi.json)

# It is part of a package: it may be missing until packages are installed.
$(dygraphs): | $(packages)
	@test -s $@ || { echo "no $@: unpack dygraphs' release there" >&2; exit 1; }

# Browsers look for the map named in its last line, which is not included.
build/page/dygraph.js: $(dygraphs)
	@mkdir -p $(@D)
	@sed 's|^//# sourceMappingURL=.*||' $< >$@

# Comments and indentation stay in the source.
build/page/%.js: observe/page/%.js
	@mkdir -p $(@D)
	@sed '/^ *\/\//d; s/^ *//' $< >$@

build/page/%.css: observe/page/%.css
	@mkdir -p $(@D)
	@sed 's/^ *//; /^\/\*.*\*\/$$/d' $< >$@

build/page/%: observe/page/%
	@mkdir -p $(@D)
	@cp $< $@

build/page/%: serve/page/%
	@mkdir -p $(@D)
	@cp $< $@

build/page/%.gz: build/page/%
	@gzip -9nc $< >$@

# Whatever is built from a file that embeds some of them.
embedding := $(shell grep -l '^FILES_EMBED' $(sources))
$(foreach for,product san fuzz simulate tsan simulate-coverage fuzz-coverage other,\
	$(embedding:%.c=build/$(for)/%.o)): $(page_files)
