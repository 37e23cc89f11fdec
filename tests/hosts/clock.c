/* A library to preload: the wall clock jumps by a day at each look at it, forth and back. The monotonic clocks are
** true. How often it was looked at is no secret: it is said in the end, on standard error.
*/
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static atomic_int looks;

static time_t jump(void)
{
	return atomic_fetch_add(&looks, 1) % 2 ? 86400 : -86400;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
	long outcome = syscall(SYS_clock_gettime, clock, time);
	if (outcome == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI))
		time->tv_sec += jump();
	return (int)outcome;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
	long outcome = syscall(SYS_gettimeofday, time, zone);
	time->tv_sec += jump();
	return (int)outcome;
}

time_t time(time_t *to)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (to)
		*to = now.tv_sec;
	return now.tv_sec;
}

__attribute__((destructor)) static void report(void)
{
	fprintf(stderr, "the wall clock has jumped\n");
}
