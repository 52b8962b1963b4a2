/* Attaching and detaching mounts, and finding a path that cannot leave its root.  Every function returns 0 or -errno. */
#ifndef SHIM_MOUNT_H
#define SHIM_MOUNT_H

/* Any of source, type and data may be NULL. */
int mount_attach(const char *source, const char *target, const char *type, unsigned long flags, const char *data);
int mount_detach(const char *target, int flags);

/* Open path (O_PATH, close-on-exec) as if root_fd were "/": no symlink and no ".." leads out of it. */
int mount_open_in_root(int root_fd, const char *path, int *opened_fd);

#endif
