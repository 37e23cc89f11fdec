-- What every generated program begins with:
--
--   local C = dofile("prelude.lua")     with the arguments LIBRARY ffi|module on|off [truth]
--
-- `C` has the program's C functions, out of LIBRARY: through FFI, or as functions of Lua's C API. `on` and `off` is the
-- JIT compiler. With `truth` they are Lua functions that note the stack in the VM's own words; `done` prints all that
-- were noted.

local library, interface, compiler, mode = arg[1], arg[2], arg[3], arg[4]
local COUNT = 40

if compiler == "off" then jit.off() end

if mode ~= "truth" then
  function done() end
  if interface == "module" then
    return assert(package.loadlib(library, "luaopen_oracle"))()
  end
  local ffi = require("ffi")
  for k = 0, COUNT - 1 do
    ffi.cdef(("double c_%d(double x); double cb_%d(double (*f)(double), double x);"):format(k, k))
  end
  return ffi.load(library)
end

local known = {
  [pcall] = "pcall", [xpcall] = "xpcall", [table.sort] = "table.sort", [string.gsub] = "string.gsub",
  [coroutine.resume] = "coroutine.resume", [collectgarbage] = "collectgarbage", [tostring] = "tostring",
}
local C = {}
local chains = {}
-- The stack of who resumed a coroutine, at that time.
local resumers = setmetatable({}, { __mode = "k" })
local collect, getinfo, running, concat = collectgarbage, debug.getinfo, coroutine.running, table.concat
local resume, create = coroutine.resume, coroutine.create

-- The stack from a level on, outermost first.
local function stack(level)
  local frames, count = {}, 0
  while true do
    local info = getinfo(level, "Slnf")
    if not info then break end
    local frame = known[info.func]
    if not frame and info.what == "C" then
      frame = "cdata:__call"
    elseif not frame and info.source ~= "@oracle.lua" then
      frame = "prelude"
    elseif not frame then
      frame = ("%d:%d:%s"):format(info.what == "main" and 0 or info.linedefined, info.currentline, info.name or "")
    end
    if frame:sub(1, 3) == "cb_" and count > 0 then
      -- What C calls has no name.
      frames[count] = frames[count]:gsub("^(%d+:%d+:).*", "%1")
    end
    count = count + 1
    frames[count] = frame
    if info.what == "main" then break end
    level = level + 1
  end
  for i = 1, count / 2 do frames[i], frames[count + 1 - i] = frames[count + 1 - i], frames[i] end
  local co = running()
  local before = co and resumers[co]
  local own = concat(frames, ";")
  return before and before .. ";" .. own or own
end

-- Whether garbage is collected upon a function of this file, which no recorded program has: what finalizers call then
-- does not count.
local collecting, noted = false, 0

for k = 0, COUNT - 1 do
  C["c_" .. k] = function(x)
    if collecting then return 1 end
    collect("stop")
    chains[stack(3) .. ";c_" .. k] = true
    collect("restart")
    noted = noted + 1
    if noted % 256 == 0 then
      collecting = true
      collect()
      collecting = false
    end
    return x * 0.25 + 1
  end
  C["cb_" .. k] = function(f, x)
    if type(f) ~= "thread" then return (f(x)) end
    collect("stop")
    resumers[f] = stack(2)
    collect("restart")
    local ok, value = resume(f, x)
    if not ok then error(value) end
    return value
  end
  known[C["cb_" .. k]] = "cb_" .. k
end

local function resumed(co, ...)
  collect("stop")
  resumers[co] = stack(4) .. ";coroutine.resume"
  collect("restart")
  local ok, value = resume(co, ...)
  if not ok then error(value) end
  return ok, value
end

coroutine.resume = function(co, ...)
  local ok, value = resumed(co, ...)
  return ok, value
end

coroutine.wrap = function(f)
  local co = create(f)
  return function(...)
    collect("stop")
    resumers[co] = stack(3) .. ";coroutine.wrap_aux"
    collect("restart")
    local ok, value = resume(co, ...)
    if not ok then error(value) end
    return value
  end
end

function done()
  collect("stop")
  for chain in pairs(chains) do print("chain " .. chain) end
  print("done")
  io.stdout:flush()
  os.exit(0)
end

return C
