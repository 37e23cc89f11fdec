/* A program that makes more VMs while it runs, each of which runs on a thread of its own.
**
**   newcomers LIBRARY [anonymous | OTHER]
**
** LIBRARY is a libluajit-5.1.so. A thread runs the VM `first` on LuaJIT's allocator. The program prints `ready` and waits
** for a line on standard input. Then it starts two more: `second` on LuaJIT's allocator, and `third` on one of the
** program's, which nothing has used before; with `anonymous` it lies in memory of no file. With OTHER, a path of another
** LuaJIT, `third` is a VM of that one, on its own allocator, and the library is loaded only then. It prints `done`, and all of
** them work until there is another line: then they stop where they are, and it prints `done` once more and waits.
**
** In a turn a VM makes 500 tables in each of two lines, those in line 4 of twice the size of those in line 3; then it
** sleeps for a millisecond. It keeps 20000 tables, so that collection cycles take some time. Its chunk has the VM's name.
*/
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "library.h"
#include "anonymous.h"

struct lua {
	lua_State *(*newstate)(lua_Alloc, void *);
	lua_State *(*newstate_builtin)(void);
	void (*openlibs)(lua_State *);
	int (*loadbuffer)(lua_State *, const char *, size_t, const char *);
	int (*call)(lua_State *, int, int, int);
};

static atomic_int stop;

static void *allocate(void *data, void *pointer, size_t old_size, size_t size)
{
	size_t *used = data;
	*used += size - old_size;
	if (size == 0) {
		free(pointer);
		return NULL;
	}
	return realloc(pointer, size);
}

/* With its own functions first: another LuaJIT's have the same names. */
static struct lua load(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_DEEPBIND);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	struct lua lua = {
		.newstate = find_function(library, "lua_newstate"),
		.newstate_builtin = find_function(library, "luaL_newstate"),
		.openlibs = find_function(library, "luaL_openlibs"),
		.loadbuffer = find_function(library, "luaL_loadbuffer"),
		.call = find_function(library, "lua_pcall"),
	};
	return lua;
}

struct worker {
	const char *name;
	lua_Alloc allocator;
	const char *library;
};

static void *work(void *argument)
{
	static const char source[] =
		"jit.off() keep = keep or (function() local t = {} for i = 1, 20000 do t[i] = {} end return t end)()\n"
		"for _ = 1, 500 do\n"
		"  local _ = {}\n"
		"  local _ = { 1, 2, 3, 4, 5, 6, 7 }\n"
		"end\n";
	static size_t used;
	struct worker *worker = argument;
	struct lua lua = load(worker->library);
	lua_State *L = worker->allocator ? lua.newstate(worker->allocator, &used) : lua.newstate_builtin();
	lua.openlibs(L);
	while (!stop) {
		if (lua.loadbuffer(L, source, sizeof(source) - 1, worker->name) || lua.call(L, 0, 0, 0)) {
			fprintf(stderr, "the Lua code fails\n");
			exit(1);
		}
		usleep(1000);
	}
	return NULL;
}

int main(int count, char **arguments)
{
	const char *library = count > 1 ? arguments[1] : "libluajit-5.1.so.2";
	const char *wish = count > 2 ? arguments[2] : "";
	const char *other = strchr(wish, '/') ? wish : NULL;
	lua_Alloc own = strcmp(wish, "anonymous") ? allocate : anonymous(allocate);
	struct worker workers[] = {
		{ "@first.lua", NULL, library },
		{ "@second.lua", NULL, library },
		{ "@third.lua", other ? NULL : own, other ? other : library },
	};
	pthread_t threads[3];
	char line[100];
	pthread_create(&threads[0], NULL, work, &workers[0]);
	usleep(100000);
	puts("ready");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return 0;
	for (int i = 1; i < 3; i++)
		pthread_create(&threads[i], NULL, work, &workers[i]);
	puts("done");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return 0;
	stop = 1;
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	puts("done");
	fflush(stdout);
	fgets(line, sizeof(line), stdin);
	return 0;
}
