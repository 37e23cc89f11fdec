/* A program that has LuaJIT only for a while.
**
**   late LIBRARY
**
** LIBRARY is a libluajit-5.1.so. It prints `ready`, and without LuaJIT in it waits for a line on standard input. At
** each line it goes one step further, and says so:
**
**   loaded            it has loaded the library, and a thread has begun to run Lua code in a VM, part of the time
**   unloaded          it has closed the VM, and unloaded the library
**
** and so on in turns, until its input ends.
*/
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "library.h"

static atomic_int stop, works;

static void *work(void *path)
{
	void *library = load_library(path);
	lua_State *(*newstate)(void) = find_function(library, "luaL_newstate");
	void (*openlibs)(lua_State *) = find_function(library, "luaL_openlibs");
	void (*close_vm)(lua_State *) = find_function(library, "lua_close");
	int (*loadbuffer)(lua_State *, const char *, size_t, const char *) = find_function(library, "luaL_loadbuffer");
	int (*call)(lua_State *, int, int, int) = find_function(library, "lua_pcall");
	static const char source[] =
		"local function serve(n) local t = {} for i = 1, n do t[#t + 1] = tostring(i) .. 'x' end return #t end\n"
		"serve(2000)\n";

	lua_State *L = newstate();
	openlibs(L);
	while (!stop) {
		if (loadbuffer(L, source, sizeof(source) - 1, "@late.lua") || call(L, 0, 0, 0)) {
			fprintf(stderr, "the Lua code fails\n");
			exit(1);
		}
		works = 1;
		usleep(500);
	}
	works = 0;
	close_vm(L);
	dlclose(library);
	return NULL;
}

static void say(const char *word)
{
	puts(word);
	fflush(stdout);
}

int main(int count, char **arguments)
{
	char line[100];
	pthread_t thread;
	int loaded = 0;

	say("ready");
	for (; fgets(line, sizeof(line), stdin); loaded = !loaded) {
		stop = loaded;
		if (loaded)
			pthread_join(thread, NULL);
		else
			pthread_create(&thread, NULL, work, count > 1 ? arguments[1] : "libluajit-5.1.so.2");
		while (!loaded && !works)
			usleep(1000);
		say(loaded ? "unloaded" : "loaded");
	}
	return 0;
}
