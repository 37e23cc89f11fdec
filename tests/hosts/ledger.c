/* A program that counts every call of its allocators, which are two, and a third one that a VM is given later.
**
**   ledger LIBRARY VMS [builtin]
**   ledger LIBRARY late MILLISECONDS
**
** LIBRARY is a libluajit-5.1.so. The VM `a` is on the first allocator, with data of its own, and `b` on the second one, which
** has none. The program prints `ready` and waits for a line. Then
**
**   1. both work, and `a` asks for more than there is; VMS others come and go, one after the other, on either allocator, with
**      data or without; with `builtin` every tenth of them is on LuaJIT's own allocator, as is a VM `c` from the start: their calls
**      nobody counts. It prints
**      `calls N` and `done`, and waits.
**   2. `a` is given the third allocator, and other data. It prints `calls N` and `done`, and waits.
**   3. `a` works on it. It prints `calls N` and `done`, and waits.
**   4. `a` gets the first one back, with the data of the second one, and works at once. It prints `calls N`, and waits.
**   5. `a` gets a fourth allocator, which nothing has used, and works at once for half a second. It prints `calls N`, `unseen N
**      SECONDS` for each 10 ms, with the calls from the change until then, and waits before it exits.
**
** With `late` it does something else: so long after the line, `a` is given the third allocator. It prints `third ADDRESS` and
** `done`, and waits for a line. Then `a` works on it, and it prints `calls N` and `done`, and waits.
**
** N is the number of all calls of its allocators so far, since it was told to begin.
*/
#define _GNU_SOURCE
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "library.h"

typedef void *(*lua_Alloc)(void *, void *, size_t, size_t);

enum { LIMIT = 64 << 20 };

static lua_State *(*newstate)(lua_Alloc, void *);
static lua_State *(*newstate_builtin)(void);
static void (*openlibs)(lua_State *);
static void (*close_vm)(lua_State *);
static void (*setallocf)(lua_State *, lua_Alloc, void *);
static int (*loadbuffer)(lua_State *, const char *, size_t, const char *);
static int (*call)(lua_State *, int, int, int);
static const char *(*tolstring)(lua_State *, int, size_t *);

static unsigned long calls[4];

static inline void *give(void *pointer, size_t size)
{
	if (size == 0) {
		free(pointer);
		return NULL;
	}
	return size > LIMIT ? NULL : realloc(pointer, size);
}

static void *first(void *data, void *pointer, size_t old_size, size_t size)
{
	calls[0]++;
	return give(pointer, size);
}

static void *second(void *data, void *pointer, size_t old_size, size_t size)
{
	calls[1]++;
	return give(pointer, size);
}

static void *third(void *data, void *pointer, size_t old_size, size_t size)
{
	calls[2]++;
	return give(pointer, size);
}

static void *fourth(void *data, void *pointer, size_t old_size, size_t size)
{
	calls[3]++;
	return give(pointer, size);
}

static unsigned long all(void)
{
	return calls[0] + calls[1] + calls[2] + calls[3];
}

static void run(lua_State *L, const char *source, const char *name)
{
	if (loadbuffer(L, source, strlen(source), name) || call(L, 0, 0, 0)) {
		fprintf(stderr, "%s: %s\n", name, tolstring(L, -1, NULL));
		exit(1);
	}
}

static const char work[] =
	"local t = {}\n"
	"for i = 1, 2000 do t[i % 50] = { i } end\n"
	"local s = ''\n"
	"for i = 1, 200 do s = s .. i end\n";

static const char beyond[] = "pcall(string.rep, 'x', 100 * 1024 * 1024)\n";

static const char brief[] =
	"local t = {}\n"
	"for i = 1, 20 do t[i] = coroutine.wrap(function() return { i } end)() end\n"
	"setmetatable(_G, { __gc = true }) newproxy(true)\n";

static void wait_for_line(void)
{
	char line[100];
	printf("calls %lu\ndone\n", all());
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		exit(0);
}

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

/* Gives `a` another allocator while somebody may be about to attach. */
static void change_late(lua_State *a, long milliseconds, void *data)
{
	char line[100];
	usleep(milliseconds * 1000);
	setallocf(a, third, data);
	printf("third %#lx\ndone\n", (unsigned long)third);
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		exit(0);
	run(a, work, "=a");
	wait_for_line();
}

int main(int count, char **arguments)
{
	void *library = load_library(count > 1 ? arguments[1] : "libluajit-5.1.so.2");
	newstate = find_function(library, "lua_newstate");
	newstate_builtin = find_function(library, "luaL_newstate");
	openlibs = find_function(library, "luaL_openlibs");
	close_vm = find_function(library, "lua_close");
	setallocf = find_function(library, "lua_setallocf");
	loadbuffer = find_function(library, "luaL_loadbuffer");
	call = find_function(library, "lua_pcall");
	tolstring = find_function(library, "lua_tolstring");
	long vms = count > 2 ? atol(arguments[2]) : 1000;
	int late = count > 3 && !strcmp(arguments[2], "late");
	int builtin = count > 3 && !strcmp(arguments[3], "builtin");

	static int data[3];
	lua_State *a = newstate(first, &data[0]);
	lua_State *b = newstate(second, NULL);
	openlibs(a);
	openlibs(b);
	if (builtin)
		openlibs(newstate_builtin());
	puts("ready");
	fflush(stdout);
	char line[100];
	if (!fgets(line, sizeof(line), stdin))
		return 0;
	memset(calls, 0, sizeof(calls));
	if (late) {
		change_late(a, atol(arguments[3]), &data[2]);
		return 0;
	}
	for (int i = 0; i < 5; i++) {
		run(a, work, "=a");
		run(b, work, "=b");
	}
	run(a, beyond, "=a");
	for (long i = 0; i < vms; i++) {
		lua_State *L = builtin && i % 10 == 9 ? newstate_builtin() : newstate(i % 2 ? first : second, i % 3 ? NULL : &data[1]);
		openlibs(L);
		run(L, brief, "=late");
		close_vm(L);
	}
	wait_for_line();
	setallocf(a, third, &data[2]);
	wait_for_line();
	run(a, work, "=a");
	wait_for_line();
	setallocf(a, first, NULL);
	run(a, work, "=a");
	wait_for_line();
	setallocf(a, fourth, NULL);
	unsigned long before = all();
	double began = seconds(), now, next = 0.01;
	while ((now = seconds() - began) < 0.5) {
		run(a, "for i = 1, 20 do local _ = { i } end", "=a");
		if (now >= next) {
			printf("unseen %lu %f\n", all() - before, now);
			next = now + 0.01;
		}
	}
	wait_for_line();
	return 0;
}
