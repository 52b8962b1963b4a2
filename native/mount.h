/* Attaching and detaching mounts, and finding a path that cannot leave its root.  Every function returns 0 or -errno. */
#ifndef SHIM_MOUNT_H
#define SHIM_MOUNT_H

/* Any of source, type and data may be NULL. */
int mount_attach(const char *source, const char *target, const char *type, unsigned long flags, const char *data);
int mount_detach(const char *target, int flags);

/* mount_attach with directory_fd as the directory that relative names in it begin from; ours stays what it is. */
int mount_attach_from(int directory_fd, const char *source, const char *target, const char *type, unsigned long flags,
                      const char *data);

/* Open path (O_PATH, close-on-exec) as if root_fd were "/": no symlink and no ".." leads out of it. */
int mount_open_in_root(int root_fd, const char *path, int *opened_fd);
/* Open path, which must not lead out of root_fd: EXDEV if it does, be it by "..", a symlink or its first slash. */
int mount_open_beneath(int root_fd, const char *path, int flags, int *opened_fd);

#endif
