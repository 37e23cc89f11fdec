// A program whose memory is made to mislead whoever looks for LuaJIT VMs in it.
//
//   hostile LIBRARY WHAT
//
// WHAT is
//   nothing     memory full of what looks like main threads, and no VM at all
//   imitations  the same, copies of a VM's GG_State that refer to themselves, and that one VM
//   prototypes  a VM whose prototypes say absurd things about themselves
//
// It prints `ready`, waits for a line on standard input, runs Lua code for a while, and prints `done`.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"

static lua_State *(*newstate)(void);
static void (*openlibs)(lua_State *);
static int (*loadstring)(lua_State *, const char *);
static int (*pcall)(lua_State *, int, int, int);
static void (*getfield)(lua_State *, int, const char *);
static const void *(*topointer)(lua_State *, int);
static void (*settop)(lua_State *, int);
static const char *(*tolstring)(lua_State *, int, size_t *);

// Keeps the compiler from leaving out what nobody here reads.
static char *volatile kept;

#define GLOBALS (-10002)
#define GG_STATE 8192
#define COPIES 2000

static const char *const WORK =
    "local clock, stop = os.clock, os.clock() + 2 "
    "function work() local t = {} for i = 1, 100 do t[i] = { i } end table.sort(t, function(a, b) return a[1] > b[1] end) end "
    "function run() stop = clock() + 2 while clock() < stop do work() end end";

static lua_State *vm(const char *path)
{
  void *library = load_library(path);
  newstate = find_function(library, "luaL_newstate");
  openlibs = find_function(library, "luaL_openlibs");
  loadstring = find_function(library, "luaL_loadstring");
  pcall = find_function(library, "lua_pcall");
  getfield = find_function(library, "lua_getfield");
  topointer = find_function(library, "lua_topointer");
  settop = find_function(library, "lua_settop");
  tolstring = find_function(library, "lua_tolstring");
  lua_State *L = newstate();
  openlibs(L);
  if (loadstring(L, WORK) || pcall(L, 0, 0, 0)) { fprintf(stderr, "%s\n", tolstring(L, -1, 0)); exit(1); }
  return L;
}

// Fills memory with main threads, GC64 and not, that have stacks, each followed by words that refer to it.
static void flood(size_t size)
{
  char *area = aligned_alloc(4096, size);
  for (size_t at = 0; at + 512 <= size; at += 512) {
    char *thread = area + at;
    uint64_t *word = (uint64_t *)thread;
    for (int i = 0; i < 64; i++) word[i] = (uint64_t)thread;
    word[1] = 0x10663;                        // marked, gct, dummy_ffid, status
    word[2] = (uint64_t)(thread + 96);        // glref
    // The stack: some have one that begins with themselves.
    word[7] = (uint64_t)(at / 512 % 128 ? area + (at + 4096) % (size - 4096) : thread + 128);
    word[4] = word[7] + 16;                   // base
    word[5] = word[7] + 32;                   // top
    word[6] = word[7] + 320;                  // maxstack
    word[10] = (uint64_t)(thread + 80);       // cframe: a circle
    word[11] = 47;                            // stacksize
  }
  kept = area;
}

// Copies of a VM's first block whose references to itself lead into the copy.
static void imitate(lua_State *L)
{
  char *area = malloc((size_t)COPIES * GG_STATE);
  for (int copy = 0; copy < COPIES; copy++) {
    char *to = area + (size_t)copy * GG_STATE;
    memcpy(to, L, GG_STATE);
    for (uint64_t *word = (uint64_t *)to; (char *)word < to + GG_STATE; word++)
      if (*word - (uint64_t)L < GG_STATE) *word += (uint64_t)to - (uint64_t)L;
  }
  kept = area;
}

// Lets the prototype of a global function lie (offsets of GCproto and GCfuncL with GC64, lj_obj.h):
// https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L372-L396
// https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L465-L468
static void corrupt(lua_State *L, const char *function)
{
  getfield(L, GLOBALS, function);
  char *proto = *(char **)((char *)topointer(L, -1) + 32) - 104;
  *(uint32_t *)(proto + 12) = 0xffffffff;     // sizebc
  *(uint32_t *)(proto + 48) = 0x7fffffff;     // sizekgc
  *(uint64_t *)(proto + 80) = 0x10;           // lineinfo: dangling
  *(uint64_t *)(proto + 88) = (uint64_t)proto; // uvinfo
  *(uint64_t *)(proto + 96) = 0x7ffffffff000; // varinfo
  *(uint32_t *)(proto + 72) = 0xfffffff0;     // firstline
  *(uint32_t *)(proto + 76) = 0xffffffff;     // numline
  settop(L, -2);
}

int main(int argc, char **argv)
{
  if (argc != 3) return 1;
  lua_State *L = NULL;
  if (strcmp(argv[2], "nothing") != 0) L = vm(argv[1]);
  if (strcmp(argv[2], "prototypes") == 0) {
    if (loadstring(L, "jit.off() collectgarbage('stop')") || pcall(L, 0, 0, 0)) return 1;
    corrupt(L, "work");
    corrupt(L, "run");
  } else {
    flood((size_t)128 << 20);
    if (L) imitate(L);
  }
  char line[16];
  puts("ready");
  fflush(stdout);
  if (!fgets(line, sizeof line, stdin)) return 0;
  if (L) {
    getfield(L, GLOBALS, "run");
    if (pcall(L, 0, 0, 0)) { fprintf(stderr, "%s\n", tolstring(L, -1, 0)); return 1; }
  }
  puts("done");
  fflush(stdout);
  (void)!fgets(line, sizeof line, stdin);
  return 0;
}
