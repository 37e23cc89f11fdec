// The functions of a LuaJIT library that is loaded while the program runs.
#ifndef LIBRARY_H
#define LIBRARY_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef __aarch64__
#include <malloc.h>

// LuaJIT's references have 47 bits, addresses have 48: malloc's memory must be that behind the program, which is linked at a
// low address.
__attribute__((constructor)) static void use_low_memory(void)
{
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_ARENA_MAX, 1);
}
#endif

typedef struct lua_State lua_State;

// Loads the library at `path`; the program ends if that is not possible.
static inline void *load_library(const char *path)
{
  void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (!library) { fprintf(stderr, "%s\n", dlerror()); exit(1); }
  return library;
}

// A function of the library; the program ends if there is none of that name.
static inline void *find_function(void *library, const char *name)
{
  void *function = dlsym(library, name);
  if (!function) { fprintf(stderr, "no %s: %s\n", name, dlerror()); exit(1); }
  return function;
}

#endif
