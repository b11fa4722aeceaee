/*
 * Version strings of this build. The Makefile passes them to this one object, so that a new commit recompiles nothing
 * else.
 */
#ifndef BASE_VERSION_H
#define BASE_VERSION_H

/* The product's version: `git describe`, or the number in the Makefile and the commit; never NULL. */
const char *version_trainer(void);

/* The date of that version's commit, in the style of manual pages: "November 23, 2026". */
const char *version_date(void);

/* The C library's: "musl 1.2.5", or "system libc" in sanitizer builds. (musl has no macro or call for it.) */
const char *version_libc(void);

#endif
