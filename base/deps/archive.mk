# Compiles FILES (relative to FOLDER) with CC and CFLAGS into WORK and packs them into ARCHIVE. Called by build.
objects := $(addprefix $(WORK)/,$(addsuffix .o,$(basename $(FILES))))

$(ARCHIVE): $(objects)
	rm -f $@
	$(AR) rcs $@ $^

$(WORK)/%.o: $(FOLDER)/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -c -o $@ $<

# NASM: its flags, which name no folder of the build, since its objects hold no path.
$(WORK)/%.o: $(FOLDER)/%.asm
	@mkdir -p $(@D)
	nasm $(NASMFLAGS) -o $@ $<
