/* The clock on the wall, moved by the seconds that stand in the file $CLOCK_SHIFT as a 64-bit number: loaded before a program,
 * it sees the clock jump when the number changes. Monotonic clocks are left alone, as they are when an administrator sets the time. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift;

__attribute__((constructor)) static void map(void) {
    const char *name = getenv("CLOCK_SHIFT");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(0, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) shift = found;
    close(file);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, id, now);
    if (!result && id == CLOCK_REALTIME && shift) now->tv_sec += *shift;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now) *now = exact.tv_sec;
    return exact.tv_sec;
}
