/* Preloaded, it gives a process a clock of the day that is off by the seconds in the file that CHAOS_CLOCK names, as they
 * are there now. The monotonic clocks stay as they are; libfaketime can't do that without breaking clock_nanosleep. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t off(void)
{
    static _Atomic time_t seconds, looked; /* the file is read once a second */
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    const char *path = getenv("CHAOS_CLOCK");
    if (path != NULL && atomic_exchange(&looked, now.tv_sec) != now.tv_sec) {
        char text[32] = "";
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file >= 0) {
            ssize_t length = read(file, text, sizeof text - 1);
            close(file);
            text[length > 0 ? length : 0] = '\0';
        }
        seconds = strtol(text, NULL, 10);
    }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += off();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    int failed = syscall(SYS_gettimeofday, now, zone);
    if (!failed)
        now->tv_sec += off();
    return failed;
}

time_t time(time_t *now)
{
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now != NULL)
        *now = found.tv_sec;
    return found.tv_sec;
}
