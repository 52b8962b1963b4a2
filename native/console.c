/* Poll, read, write: never more is read than a writable pipe takes at once, so that an early end loses nothing. */
#define _GNU_SOURCE
#include "console.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum ending { HUNG_UP = 0, OUT_OF_TIME = 1, WOKEN = 2, SINK_GONE = 3, READY = 4 };

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Until fd has one of the events or hangs up: READY, OUT_OF_TIME, WOKEN or -errno. */
static int wait_for(int fd, short events, int wake_fd, int64_t deadline)
{
    for (;;) {
        struct pollfd watched[2] = {{.fd = wake_fd, .events = POLLIN}, {.fd = fd, .events = events}};
        int64_t left = deadline - now_ms();
        int count = poll(watched, 2, left < 0 ? 0 : (int)left);

        if (count < 0 && errno != EINTR)
            return -errno;
        if (count > 0 && watched[0].revents != 0)
            return WOKEN;
        if (count > 0 && watched[1].revents & POLLNVAL)
            return -EBADF;
        if (count > 0 && watched[1].revents != 0)
            return READY;
        if (left <= 0)
            return OUT_OF_TIME;
    }
}

/* All of it, waiting for room where a sink takes less than was promised: READY when all is written. */
static int hand_over(int sink_fd, const char *data, size_t size, int wake_fd, int64_t deadline,
                     struct console_report *report)
{
    int result = READY;

    while (size > 0 && result == READY) {
        ssize_t written = write(sink_fd, data, size);

        if (written >= 0) {
            data += written;
            size -= (size_t)written;
            report->bytes += written;
        } else if (errno == EAGAIN) {
            result = wait_for(sink_fd, POLLOUT, wake_fd, deadline);
        } else if (errno == EPIPE) {
            result = SINK_GONE;
        } else if (errno != EINTR) {
            result = -errno;
        }
    }
    report->lost += (int64_t)size;
    return result;
}

static int move_once(int master_fd, int sink_fd, int wake_fd, int64_t deadline, struct console_report *report)
{
    char data[PIPE_BUF];
    ssize_t count;
    int result;

    result = wait_for(master_fd, POLLIN, wake_fd, deadline);
    if (result == READY)
        result = wait_for(sink_fd, POLLOUT, wake_fd, deadline);
    if (result != READY)
        return result;
    count = read(master_fd, data, sizeof(data));
    if (count > 0)
        return hand_over(sink_fd, data, (size_t)count, wake_fd, deadline, report);
    if (count == 0 || errno == EIO)
        return HUNG_UP;
    return errno == EAGAIN || errno == EINTR ? READY : -errno;
}

int console_drain(int master_fd, int sink_fd, int wake_fd, int timeout_ms, struct console_report *report)
{
    int64_t deadline = now_ms() + timeout_ms;
    int result;

    memset(report, 0, sizeof(*report));
    do
        result = move_once(master_fd, sink_fd, wake_fd, deadline, report);
    while (result == READY);
    if (result < 0)
        return result;
    report->ending = result;
    return 0;
}
