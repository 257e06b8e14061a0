/* Shifts the wall clock of a process that loads this with LD_PRELOAD: PostgreSQL, in the tests.
 *
 * GAPLESS_TEST_CLOCK_MAP is the path of a file of eight bytes: the clock offset in seconds. It is memory-mapped, so that
 * writing the file shifts the clock of the running server and of all its sessions at once. The monotonic clock is not
 * shifted. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *off_by_s;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("GAPLESS_TEST_CLOCK_MAP");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) off_by_s = mapped;
    close(file);
}

static int64_t offset(void) { return off_by_s ? *off_by_s : 0; }

int clock_gettime(clockid_t clock, struct timespec *at) {
    int answer = (int)syscall(SYS_clock_gettime, clock, at);
    if (answer == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += offset();
    return answer;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int answer = clock_gettime(CLOCK_REALTIME, &now);
    if (answer == 0) {
        at->tv_sec = now.tv_sec;
        at->tv_usec = now.tv_nsec / 1000;
    }
    return answer;
}

time_t time(time_t *at) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return (time_t)-1;
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
