/*
 * Mounts as descriptors: a new file system or a copy of a mount that is attached nowhere yet, so that all its properties
 * are in place before anybody can see it, and nothing is left when it is closed.  Every function returns 0 or -errno;
 * every descriptor that is given back is close-on-exec and the caller's.
 */
#ifndef SHIM_MOUNTFD_H
#define SHIM_MOUNTFD_H

#include <stdint.h>

struct mountfd_change {
    uint64_t set;   /* MOUNT_ATTR_* */
    uint64_t clear; /* MOUNT_ATTR_* */
    int recursive;  /* of all mounts in the tree */
    int userns_fd;  /* the mapping of a MOUNT_ATTR_IDMAP in set, else -1 */
};

/* A detached copy of the mount at path, with what is mounted below it or without. */
int mountfd_copy(const char *path, int recursive, int *tree_fd);
/* Change a detached mount: an id mapping can be given to no other. */
int mountfd_change(int tree_fd, const struct mountfd_change *change);
/* Attach a detached mount on what place_fd (O_PATH) has open. */
int mountfd_attach(int tree_fd, int place_fd);

/* A file system to be configured step by step. */
int mountfd_open_context(const char *type, int *context_fd);
int mountfd_set_flag(int context_fd, const char *key);
int mountfd_set_text(int context_fd, const char *key, const char *value);
int mountfd_set_file(int context_fd, const char *key, int fd);
/* Make it, and a detached mount of it with these MOUNT_ATTR_*. */
int mountfd_create(int context_fd, unsigned int attributes, int *tree_fd);

#endif
