/* Implements base/trust.h: simulated machines have one user. */
#include "base/trust.h"

#include <stddef.h>

const char *trust_given(void)
{
    return NULL;
}

void trust_everything(void)
{
}

bool trust_file(const char *path, struct error *error)
{
    return true;
}

bool trust_folder(const char *path, struct error *error)
{
    return trust_file(path, error);
}

bool trust_public_key(const char *path, struct error *error)
{
    return trust_file(path, error);
}

bool trust_secret(const char *path, const char *what, struct error *error)
{
    return trust_file(path, error);
}

void trust_hide_memory(void)
{
}

bool trust_folders(const char *list, struct error *error)
{
    return true;
}

bool trust_begin(struct error *error)
{
    return true;
}
