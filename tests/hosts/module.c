// A module for Lua, loaded while its program is recorded: a C function that allocates, and one that nothing calls.
#include <stddef.h>

typedef struct lua_State lua_State;
void *lua_newuserdata(lua_State *L, size_t size);
void lua_pushcclosure(lua_State *L, int (*function)(lua_State *L), int upvalues);

static int make_userdata(lua_State *L) {
  lua_newuserdata(L, 1000);
  return 1;
}

int never_called(lua_State *L) {
  lua_newuserdata(L, 2000);
  return 1;
}

int luaopen_module(lua_State *L) {
  lua_pushcclosure(L, make_userdata, 0);
  return 1;
}
