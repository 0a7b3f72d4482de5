/* Does as its standard input says, and says where its code is: process, address, time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifdef PADDING
/* So that two builds differ in layout. */
#define TEXT(number) #number
#define SKIP(number) ".text\n.skip " TEXT(number) "\n"
__asm__(SKIP(PADDING));
#endif

static void tell(const void *address)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	printf("%d %lu %lld\n", getpid(), (unsigned long)address, now.tv_sec * 1000000000LL + now.tv_nsec);
	fflush(stdout);
}

__attribute__((noinline)) void here(void)
{
	tell((const void *)here);
}

/* The first page of a file's code, at an address. */
static void *map(const char *path, void *address)
{
	int file = open(path, O_RDONLY);
	void *mapped = mmap(address, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | (address ? MAP_FIXED : 0), file, 0);

	close(file);
	return mapped;
}

static void loop(void)
{
	char line[4096], first[2048], second[2048];

	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (sscanf(line, "exec %2047s", first) == 1) {
			execl(first, first, NULL);
			exit(1);
		} else if (!strcmp(line, "fork")) {
			if (fork() == 0)
				here();
#ifndef STATIC
		} else if (sscanf(line, "open %2047s", first) == 1) {
			void *library = dlopen(first, RTLD_NOW);
			tell(dlsym(library, "in_library"));
			dlclose(library);
#endif
		} else if (sscanf(line, "over %2047s %2047s", first, second) == 2) {
			void *address = map(first, NULL);
			tell(address);
			tell(map(second, address));
		} else if (!strcmp(line, "vdso")) {
			tell((const void *)getauxval(AT_SYSINFO_EHDR));
		} else if (!strcmp(line, "anonymous")) {
			tell(mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
		}
	}
	exit(0);
}

static void *go_on(void *leader)
{
	pthread_join(*(pthread_t *)leader, NULL);
	here();
	loop();
	return NULL;
}

int main(void)
{
	static pthread_t leader;
	char line[16];
	pthread_t thread;
	int next;

	setvbuf(stdin, NULL, _IONBF, 0);
	here();
	next = getchar();
	ungetc(next, stdin);
	if (next == 't' && fgets(line, sizeof(line), stdin)) {
		leader = pthread_self();
		pthread_create(&thread, NULL, go_on, &leader);
		pthread_exit(NULL);
	}
	loop();
}
