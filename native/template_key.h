/* What a fork inherits and a caller could care about, as one text: see template_key.c. */
#ifndef SHIM_TEMPLATE_KEY_H
#define SHIM_TEMPLATE_KEY_H

#include <stddef.h>

enum { TEMPLATE_NAME_SIZE = 33 };

/* Writes the key of this process, for programs of `build`, into `text`; its length, or -errno (ENOBUFS: no room). */
int template_key(const char *build, char *text, size_t size);

/* Writes the name that stands for the key in file names: 32 hexadecimal digits and a zero. */
void template_name(const char *text, size_t length, char name[TEMPLATE_NAME_SIZE]);

#endif
