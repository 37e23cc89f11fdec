/* A program that makes functions, coroutines and VMs all the time, and keeps none of them.
**
**   churn LIBRARY [BUSY SLEEP]
**
** LIBRARY is a libluajit-5.1.so of a build with 64-bit references. The program prints `ready` and goes on until it is ended.
** In a turn two VMs work for BUSY milliseconds of CPU time each (25): one that lives as long as the program, and the newest
** of KEPT others, the oldest of which was closed before. Then it sleeps for SLEEP milliseconds (350). Every function is a new one, of
** a chunk with a name of its own. The others have an allocator of the program's, and blocks of many sizes lie between them, so
** that each is at another address.
*/
#define _GNU_SOURCE
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "library.h"

typedef void *(*lua_Alloc)(void *, void *, size_t, size_t);

enum { LUA_GLOBALSINDEX = -10002, KEPT = 4 };

static lua_State *(*newstate)(lua_Alloc, void *);
static lua_State *(*newstate_builtin)(void);
static void (*openlibs)(lua_State *);
static void (*close_vm)(lua_State *);
static int (*loadbuffer)(lua_State *, const char *, size_t, const char *);
static int (*call)(lua_State *, int, int, int);
static void (*pushinteger)(lua_State *, long);
static void (*setfield)(lua_State *, int, const char *);
static const char *(*tolstring)(lua_State *, int, size_t *);

static const char source[] =
	"local until_then = os.clock() + busy\n"
	"number = number or vm * 1000000\n"
	"repeat\n"
	"  number = number + 1\n"
	"  local n = number\n"
	"  local code = 'local function inner_' .. n .. '(a) local s = 0 for i = 1, 2000 do s = s + i % a end return s end '\n"
	"    .. 'return function(a) local t = {} for i = 1, 20 do t[i] = inner_' .. n .. '(a + i) end return t end'\n"
	"  local f = assert(loadstring(code, '@/srv/application/generated/handlers/handler_' .. n .. '.lua'))()\n"
	"  local resume = coroutine.wrap(function(a) coroutine.yield(f(a)) return f(a) end)\n"
	"  resume(n) resume()\n"
	"until os.clock() > until_then\n";

static void work(lua_State *L)
{
	if (loadbuffer(L, source, sizeof(source) - 1, "@churn.lua") || call(L, 0, 0, 0)) {
		fprintf(stderr, "the Lua code fails: %s\n", tolstring(L, -1, NULL));
		exit(1);
	}
}

static void *allocate(void *data, void *pointer, size_t old_size, size_t size)
{
	if (size == 0) {
		free(pointer);
		return NULL;
	}
	return realloc(pointer, size);
}

static lua_State *open_vm(long number, long busy)
{
	lua_State *L = number ? newstate(allocate, NULL) : newstate_builtin();
	openlibs(L);
	pushinteger(L, number);
	setfield(L, LUA_GLOBALSINDEX, "vm");
	pushinteger(L, busy);
	setfield(L, LUA_GLOBALSINDEX, "milliseconds");
	static const char seconds[] = "busy = milliseconds / 1000";
	if (loadbuffer(L, seconds, sizeof(seconds) - 1, "=seconds") || call(L, 0, 0, 0))
		exit(1);
	return L;
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
	pushinteger = find_function(library, "lua_pushinteger");
	setfield = find_function(library, "lua_setfield");
	tolstring = find_function(library, "lua_tolstring");
	long busy = count > 3 ? atol(arguments[2]) : 25;
	long pause = count > 3 ? atol(arguments[3]) : 350;
	struct timespec sleep = { pause / 1000, pause % 1000 * 1000000 };

	lua_State *first = open_vm(0, busy);
	puts("ready");
	fflush(stdout);
	lua_State *others[KEPT] = { NULL };
	void *between[7 * KEPT] = { NULL };
	for (long number = 1;; number++) {
		work(first);
		lua_State **other = &others[number % KEPT];
		if (*other)
			close_vm(*other);
		void **block = &between[number % (7 * KEPT)];
		free(*block);
		*block = malloc(1000 + rand() % 60000);
		*other = open_vm(number, busy);
		work(*other);
		nanosleep(&sleep, NULL);
	}
}
