/*
 * One call configures a device completely or not at all, so there is no half-made one to undo, and a device that
 * somebody else took in between answers EBUSY: theirs is never touched.
 */
#define _GNU_SOURCE
#include "loop.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define ATTEMPTS 128 /* races for free devices that we may lose in a row */

static int free_number(void)
{
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    int number;

    if (control < 0)
        return -errno;
    number = ioctl(control, LOOP_CTL_GET_FREE);
    if (number < 0)
        number = -errno;
    close(control);
    return number;
}

static int configure(const struct loop_request *request, struct loop_device *device)
{
    struct loop_config config;
    char path[32];
    int number = free_number();
    int fd, result;

    if (number < 0)
        return number;
    snprintf(path, sizeof(path), "/dev/loop%d", number);
    fd = open(path, (request->read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    memset(&config, 0, sizeof(config));
    config.fd = (unsigned int)request->image_fd;
    snprintf((char *)config.info.lo_file_name, sizeof(config.info.lo_file_name), "%s", request->name);
    config.info.lo_flags = (request->read_only ? LO_FLAGS_READ_ONLY : 0) | (request->autoclear ? LO_FLAGS_AUTOCLEAR : 0) |
                           (request->direct_io ? LO_FLAGS_DIRECT_IO : 0);
    if (ioctl(fd, LOOP_CONFIGURE, &config) < 0) {
        result = -errno;
        close(fd);
        return result;
    }
    device->number = number;
    device->fd = fd;
    return 0;
}

int loop_attach(const struct loop_request *request, struct loop_device *device)
{
    int result = -EBUSY;
    int attempt;

    for (attempt = 0; attempt < ATTEMPTS && result == -EBUSY; attempt++)
        result = configure(request, device);
    return result;
}

int loop_identify(int fd, struct loop_identity *identity)
{
    struct loop_info64 info;

    if (ioctl(fd, LOOP_GET_STATUS64, &info) < 0)
        return -errno;
    identity->number = (int)info.lo_number;
    identity->device = info.lo_device;
    identity->inode = info.lo_inode;
    return 0;
}

int loop_detach(int fd)
{
    return ioctl(fd, LOOP_CLR_FD, 0) < 0 ? -errno : 0;
}
