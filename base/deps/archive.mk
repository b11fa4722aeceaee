# Compiles FILES (relative to FOLDER) with CC and CFLAGS into WORK and packs them into ARCHIVE. Called by build.
objects := $(FILES:%.c=$(WORK)/%.o)

$(ARCHIVE): $(objects)
	rm -f $@
	$(AR) rcs $@ $^

$(WORK)/%.o: $(FOLDER)/%.c
	$(CC) $(CFLAGS) -c -o $@ $<
