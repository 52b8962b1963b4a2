/* User namespaces as carriers of an id mapping.  Every function returns 0 or -errno. */
#ifndef SHIM_USERNS_H
#define SHIM_USERNS_H

/* A user namespace with these maps, each in the notation of /proc/PID/uid_map; the descriptor is close-on-exec. */
int userns_open(const char *uid_map, const char *gid_map, int *userns_fd);

#endif
