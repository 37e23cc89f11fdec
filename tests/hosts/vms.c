/* A program with several VMs, on allocators of LuaJIT's and of its own.
**
**   vms LIBRARY [same-data | anonymous]
**
** LIBRARY is a libluajit-5.1.so. The VMs are a and b on LuaJIT's allocator, and c and d on the program's, which has
** data of its own for each VM, or with `same-data` none for both; with `anonymous` it lies in memory of no file. It prints
** `ready` and waits for a line on standard input. Then each VM runs a chunk of its name, b on two threads one after the other, c into the limit of its
** allocator; VMs e, f and g are opened, used and closed one after the other, f on the program's allocator with the data
** that d has, or none; and b is closed. For each VM it prints
**
**   vm NAME GROWTH    how much the VM says its heap has grown between two strings of the lengths below, in bytes
**   done
**
** and waits for another line before it exits.
*/
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"
#include "anonymous.h"

enum { BEGIN = 50021, END = 60037, LIMIT = 4 << 20, LUA_GCSTOP = 0, LUA_GCCOUNT = 3, LUA_GCCOUNTB = 4 };

static lua_State *(*newstate)(lua_Alloc, void *);
static lua_State *(*newstate_builtin)(void);
static void (*openlibs)(lua_State *);
static void (*close_vm)(lua_State *);
static int (*loadbuffer)(lua_State *, const char *, size_t, const char *);
static int (*call)(lua_State *, int, int, int);
static void (*pushlstring)(lua_State *, const char *, size_t);
static void (*settop)(lua_State *, int);
static int (*gc)(lua_State *, int, int);
static const char *(*tolstring)(lua_State *, int, size_t *);

struct limited {
	size_t used;
};

/* Gives no more than LIMIT bytes to a VM, if it knows the VM. */
static void *allocate(void *data, void *pointer, size_t old_size, size_t size)
{
	struct limited *vm = data;
	if (size == 0) {
		if (vm)
			vm->used -= old_size;
		free(pointer);
		return NULL;
	}
	if ((vm ? vm->used : 0) + size - old_size > LIMIT)
		return NULL;
	if (vm)
		vm->used += size - old_size;
	return realloc(pointer, size);
}

static void run(lua_State *L, const char *name)
{
	static const char source[] =
		"jit.off()\n"
		"for _ = 1, 500 do local _ = {} end\n"
		"local ok = pcall(string.rep, 'x', 8 * 1024 * 1024)\n"
		"local thread = coroutine.wrap(function()\n"
		"  for _ = 1, 500 do local _ = {} coroutine.yield() end\n"
		"end)\n"
		"for _ = 1, 500 do thread() end\n";
	if (loadbuffer(L, source, sizeof(source) - 1, name) || call(L, 0, 0, 0)) {
		fprintf(stderr, "%s: %s\n", name, tolstring(L, -1, NULL));
		exit(1);
	}
}

struct turn {
	lua_State *L;
	const char *name;
};

static void *on_thread(void *argument)
{
	struct turn *turn = argument;
	run(turn->L, turn->name);
	return NULL;
}

static long long heap(lua_State *L)
{
	return gc(L, LUA_GCCOUNT, 0) * 1024LL + gc(L, LUA_GCCOUNTB, 0);
}

static void mark(lua_State *L, size_t length)
{
	char *text = malloc(length);
	memset(text, 'm', length);
	pushlstring(L, text, length);
	settop(L, 0);
	free(text);
}

/* Prepares a VM and marks where its story begins. Returns the size of its heap. */
static long long begin(lua_State *L)
{
	openlibs(L);
	gc(L, LUA_GCSTOP, 0);
	mark(L, BEGIN);
	return heap(L);
}

/* Opens, uses and closes a VM while others are there. */
static void late(lua_State *L, const char *name)
{
	long long before = begin(L);
	run(L, name);
	printf("vm %s %lld\n", name, heap(L) - before);
	mark(L, END);
	close_vm(L);
}

static void wait_for_line(void)
{
	char line[100];
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		exit(0);
}

int main(int count, char **arguments)
{
	void *library = load_library(count > 1 ? arguments[1] : "libluajit-5.1.so.2");
	newstate = find_function(library, "lua_newstate");
	newstate_builtin = find_function(library, "luaL_newstate");
	openlibs = find_function(library, "luaL_openlibs");
	close_vm = find_function(library, "lua_close");
	loadbuffer = find_function(library, "luaL_loadbuffer");
	call = find_function(library, "lua_pcall");
	pushlstring = find_function(library, "lua_pushlstring");
	settop = find_function(library, "lua_settop");
	gc = find_function(library, "lua_gc");
	tolstring = find_function(library, "lua_tolstring");

	int same = count > 2 && !strcmp(arguments[2], "same-data");
	static struct limited limits[2];
	lua_Alloc own = count > 2 && !strcmp(arguments[2], "anonymous") ? anonymous(allocate) : allocate;
	const char *names[] = { "=a", "=b", "=c", "=d" };
	lua_State *vms[] = {
		newstate_builtin(),
		newstate_builtin(),
		newstate(own, same ? NULL : &limits[0]),
		newstate(own, same ? NULL : &limits[1]),
	};
	for (int i = 0; i < 4; i++) {
		openlibs(vms[i]);
		gc(vms[i], LUA_GCSTOP, 0);
	}
	puts("ready");
	wait_for_line();

	long long before[4], growth[4];
	for (int i = 0; i < 4; i++) {
		mark(vms[i], BEGIN);
		before[i] = heap(vms[i]);
	}
	run(vms[0], names[0]);
	struct turn turn = { vms[1], names[1] };
	for (int i = 0; i < 2; i++) {
		pthread_t thread;
		pthread_create(&thread, NULL, on_thread, &turn);
		pthread_join(thread, NULL);
	}
	run(vms[2], names[2]);
	late(newstate_builtin(), "=e");
	late(newstate(own, same ? NULL : &limits[1]), "=f");
	late(newstate_builtin(), "=g");
	/* At the same time, each on its own thread. */
	struct turn turns[] = { { vms[0], names[0] }, { vms[3], names[3] } };
	pthread_t threads[2];
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, on_thread, &turns[i]);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < 4; i++) {
		growth[i] = heap(vms[i]) - before[i];
		mark(vms[i], END);
	}
	close_vm(vms[1]);
	for (int i = 0; i < 4; i++)
		printf("vm %s %lld\n", names[i], growth[i]);
	puts("done");
	wait_for_line();
	return 0;
}
