//! Support for the end-to-end tests: real LuaJIT programs, their workloads, and `lj-trace` runs on them.
