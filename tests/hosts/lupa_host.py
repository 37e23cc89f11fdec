"""Runs a Lua script in LuaJIT as the Python package lupa embeds it.

    lupa_host.py MODULE[,MODULE...] SCRIPT [ARGUMENT...]

Each module is one of lupa's LuaJITs, and gets a VM; the script runs in the first one.
"""

import importlib
import sys

modules, *words = sys.argv[1:]
runtimes = [importlib.import_module("lupa." + module).LuaRuntime() for module in modules.split(",")]
runtimes[0].globals().arg = runtimes[0].table_from(dict(enumerate(words)))
runtimes[0].execute("dofile(arg[0])")
