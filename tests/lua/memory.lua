-- A workload that knows what it allocates: every call of the VM's allocator, by line.
--
--   memory.lua [ROUNDS]
--
-- It prints `ready` and waits for a line on standard input (or its end). Then it allocates, between two strings of
-- unusual sizes that mark the beginning and the end in the sequence of events, and prints
--
--   event SOURCE KIND COUNT OLD NEW   COUNT events of this KIND (alloc, realloc, free) with these sizes in bytes;
--                                     SOURCE is a line of this file, or the name of a C function
--   sum LINE GROWTH                   all events of this line together let the heap grow by so many bytes
--   round CHUNK LINE COUNT SIZE       COUNT allocations of SIZE bytes at LINE of a chunk that is loaded for a while
--   mark BEGIN END                    the lengths of the strings that mark beginning and end
--   heap GROWTH                       how much the VM says its heap has grown between the two, in bytes
--   done
--
-- and waits for another line on standard input (or its end) before it exits.
--
-- What a line does to the heap stands at its end, after `-->`, in Lua: calls of alloc, realloc and free with the
-- number of events and the sizes. A line without such a note does nothing to the heap. Sizes are those of lj_obj.h: https://github.com/LuaJIT/LuaJIT/blob/1ee778a4e37122d8ca7d5733c590a47dafd6b15c/src/lj_obj.h#L300-L513

jit.off()
-- The table of strings does not grow while the garbage collector is at it: so it must have finished.
collectgarbage()
collectgarbage("stop")
local has_ffi, ffi = pcall(require, "ffi")
local has_buffer, buffer = pcall(require, "string.buffer")

---- Sizes ----------------------------------------------------------------------------------------------------------

-- How much the VM says that its heap grows by a function that keeps what it returns.
local function measured(f)
  local before = collectgarbage("count")
  local kept = f()
  return (collectgarbage("count") - before) * 1024, kept
end

-- Not every build can be asked what it is; the size of a table tells.
local GC64 = measured(function() return {} end) == 64
local size = GC64
    and { TAB = 64, FUNC = 40, CFUNC = 48, UPVALUE = 48, UDATA = 48, CDATA = 16, STR = 24, THREAD = 96 }
  or { TAB = 32, FUNC = 20, CFUNC = 32, UPVALUE = 24, UDATA = 24, CDATA = 8, STR = 16, THREAD = 64 }
size.SLOT, size.NODE, size.REF, size.BUFFER = 8, 24, GC64 and 8 or 4, GC64 and 72 or 56
-- OpenResty's threads carry two pointers for the embedder (lua_State.exdata, exdata2).
if pcall(require, "thread.exdata") then size.THREAD = size.THREAD + 16 end
-- How many slots a stack has at first differs from version to version (LJ_STACK_EXTRA).
size.SLOTS = (measured(function() return coroutine.create(measured) end) - size.THREAD) / size.SLOT
-- Since 2020-06 a string's size is a multiple of 4 (lj_str_size).
local rounded = has_buffer
-- LuaJIT 2.0 makes a string of every number that it concatenates.
local old = jit.version_num < 20100
-- By then strings had numbers of their own, for which the longer headers had room.
if rounded and not GC64 then size.STR = 20 end

function size.string(length)
  return size.STR + (rounded and math.floor((length + 4) / 4) * 4 or length + 1)
end

---- What happened, by line ------------------------------------------------------------------------------------------

local N = 100
local BEGIN, END = 50021, 60037
local calls = { compare = 0 }
local growth = { parsed = 0, throws_in_c = 0, source = 0, chunk = 0, larger = 0 } -- By name of the line.
local report = {}

-- Runs the notes at the ends of the lines.
local function notes()
  local number = 0
  local function say(...) report[#report + 1] = table.concat({ ... }, " ") end
  local env = setmetatable({ N = N, calls = calls, old = old, has_ffi = has_ffi, has_buffer = has_buffer }, { __index = size })
  function env.alloc(count, new) say("event", number, "alloc", count, 0, new) end
  function env.realloc(count, old, new) say("event", number, "realloc", count, old, new) end
  function env.free(count, old) say("event", number, "free", count, old, 0) end
  function env.alloc_in(name, count, new) say("event", name, "alloc", count, 0, new) end
  function env.sum(name) say("sum", number, growth[name]) end
  for line in io.lines(debug.getinfo(1, "S").source:sub(2)) do
    number = number + 1
    local note = line:match("%-%->%s(.*)$")
    if note and not line:match("^%-%-") then setfenv(assert(loadstring(note)), env)() end
  end
end

---- Work -----------------------------------------------------------------------------------------------------------

-- Numbers of seven digits that are never used twice.
local last = 1000000
local function fresh(count)
  local first = last + 1
  last = last + count
  return first, last
end

local work = {}
local function does(f) work[#work + 1] = f end

does(function()
  for _ = 1, N do local _ = {} end --> alloc(N, TAB)
  for i = 1, N do local _ = { i, i, i } end --> alloc(N, TAB + 4 * SLOT)
  for _ = 1, N do local _ = { 1, 2, 3, 4 } end --> alloc(N, TAB + 5 * SLOT)
  for _ = 1, N do local _ = { a = 1, b = 2 } end --> alloc(N, TAB) alloc(N, 2 * NODE)
  local list = {} --> alloc(1, TAB)
  for i = 1, 9 do
    list[i] = i --> alloc(1, 3 * SLOT) realloc(1, 24, 40) realloc(1, 40, 72) realloc(1, 72, 136)
  end
  local map = {} --> alloc(1, TAB)
  map.a, map.b = 1, 1 --> alloc(1, 2 * NODE)
  map.c, map.d = 1, 1 --> alloc(1, 4 * NODE) free(1, 2 * NODE)
  map.e = 1 --> alloc(1, 8 * NODE) free(1, 4 * NODE)
end)

does(function()
  local list = {} --> alloc(1, TAB)
  for i = 1, 5 do
    table.insert(list, i) --> alloc(1, 3 * SLOT) realloc(1, 24, 40) realloc(1, 40, 72)
  end
end)

does(function()
  local first, final = fresh(N)
  for i = first, final do local _ = "c" .. i end --> alloc(N, string(8)) if old then alloc(N, string(7)) end
  for i = first, final do local _ = "c" .. i end
  for i = first, final do local _ = tostring(i) end --> if not old then alloc(N, string(7)) end
  for i = first, final do
    local _ = ("%d-%s"):format(i, "x") --> alloc(N, string(9))
  end
  for i = first, final do
    local _ = ("%d-%s"):format(i, "x"):upper() --> alloc(N, string(9))
  end
  local part = tostring(fresh(1)) --> alloc(1, string(7))
  local _ = part:rep(100) --> alloc(1, string(700))
  local _ = table.concat({ part, part, part }, ",") --> alloc(1, TAB + 4 * SLOT) alloc(1, string(23))
end)

does(function()
  for _ = 1, N do local _ = function() end end --> alloc(N, FUNC)
  for i = 1, N do
    local _ = function() return i end --> alloc(N, FUNC + REF) alloc(N, UPVALUE)
  end
  for i = 1, N do
    local _ = function() return i end --> alloc(N, FUNC + REF) alloc(N, UPVALUE)
    local _ = function() return i end --> alloc(N, FUNC + REF)
  end
end)

---- Coroutines

local function in_coroutine(count)
  for _ = 1, count do
    local _ = {} --> alloc(N, TAB)
    coroutine.yield()
    local _ = {} --> alloc(N, TAB)
  end
end

does(function()
  local thread = coroutine.create(in_coroutine) --> alloc(1, THREAD) alloc(1, SLOTS * SLOT)
  for _ = 1, N + 1 do
    coroutine.resume(thread, N)
    local _ = { 1, 2 } --> alloc(N + 1, TAB + 3 * SLOT)
  end
  local wrapped = coroutine.wrap(in_coroutine) --> alloc(1, THREAD) alloc(1, SLOTS * SLOT) alloc(1, CFUNC + SLOT)
  for _ = 1, 1 do wrapped(0) end
end)

---- C callbacks, metamethods, errors

local function compare(a, b)
  calls.compare = calls.compare + 1
  local _ = { a, b } --> alloc(calls.compare, TAB + 3 * SLOT)
  return a < b
end

local number
local function replace(word)
  number = number + 1
  return word .. number --> alloc(4, string(10)) if old then alloc(4, string(7)) end
end

local anchors = { "one", "two", "six", "ten" }

does(function()
  local list = { 5, 2, 8, 1, 9, 3, 7, 4, 6 } --> alloc(1, TAB) alloc(1, 17 * SLOT)
  table.sort(list, compare)
  number = fresh(4) - 1
  local _ = string.gsub("one two six ten", "%a+", replace) --> alloc(1, string(43))
end)

local metatable = {
  __index = function(_, key)
    return { key } --> alloc(N, TAB + 3 * SLOT)
  end,
  __add = function(_, other)
    local _ = { other, other } --> alloc(N, TAB + 3 * SLOT)
    return 1
  end,
  __concat = function(_, other)
    return "m" .. other --> alloc(N, string(8)) if old then alloc(N, string(7)) end
  end,
  __call = function()
    return {} --> alloc(N, TAB)
  end,
  __mul = table.concat,
}

does(function()
  local object = setmetatable({}, metatable) --> alloc(1, TAB)
  for _ = 1, N do local _ = object.field end
  for i = 1, N do local _ = object + i end
  local first, final = fresh(N)
  for i = first, final do local _ = object .. i end
  for _ = 1, N do local _ = object() end
  local pair = setmetatable({ "p" .. fresh(1), "q" }, metatable) --> alloc(1, TAB + 3 * SLOT) alloc(1, string(8)) if old then alloc(1, string(7)) end
  local _ = pair * "-" --> alloc(1, string(10))
end)

local function throws(i)
  local _ = { i, i } --> alloc(2 * N, TAB + 3 * SLOT)
  error({ i }) --> alloc(2 * N, TAB + 3 * SLOT)
end

local function throws_in_c(wrong)
  local _ = string.rep(wrong) --> sum("throws_in_c")
end

does(function()
  for i = 1, N do
    pcall(throws, i)
    local _ = {} --> alloc(N, TAB)
  end
  for i = 1, N do xpcall(throws, type, i) end
  local before = collectgarbage("count")
  for _ = 1, N do pcall(throws_in_c, metatable) end
  growth.throws_in_c = (collectgarbage("count") - before) * 1024
  local _ = {} --> alloc(1, TAB)
end)

---- C

does(function()
  for _ = 1, N do local _ = newproxy() end --> alloc(N, UDATA)
  local file = io.tmpfile() --> alloc(1, UDATA + 16)
  file:close()
  local module = {} --> alloc(1, TAB)
  package.seeall(module) --> alloc_in("package.seeall", 1, TAB) alloc_in("package.seeall", 1, 2 * NODE)
  local text = tostring(fresh(1)) --> alloc(1, string(7))
  local _ = pcall(string.rep, text, 50) --> alloc_in("string.rep", 1, string(350))
end)

if has_ffi then
  local ints, list_of_ints, long = ffi.typeof("int[10]"), ffi.typeof("int[?]"), ffi.typeof("int64_t")
  does(function()
    for _ = 1, N do local _ = ints() end --> if has_ffi then alloc(N, CDATA + 40) end
    for _ = 1, N do local _ = list_of_ints(25) end --> if has_ffi then alloc(N, 8 + CDATA + 100) end
    for i = 1, N do local _ = long(i) end --> if has_ffi then alloc(N, CDATA + 8) end
    local one = long(1) --> if has_ffi then alloc(1, CDATA + 8) end
    for _ = 1, N do local _ = one + 1 end --> if has_ffi then alloc(N, CDATA + 8) end
  end)
end

if has_buffer then
  local text = string.rep("x", 100)
  does(function()
    local out = buffer.new() --> if has_buffer then alloc(1, UDATA + BUFFER) end
    out:put("x") --> if has_buffer then alloc(1, 32) end
    out:put(text) --> if has_buffer then realloc(1, 32, 128) end
    out:free() --> if has_buffer then free(1, 128) end
  end)
end

---- The parser, and functions that are collected

does(function()
  local before = collectgarbage("count")
  local _ = assert(loadstring("local a, b = 1, 'b' return function() return a, b end", "=parsed")) --> sum("parsed")
  growth.parsed = (collectgarbage("count") - before) * 1024
end)

local ROUNDS = tonumber(arg[1]) or 6

-- The same addresses get another meaning in each round.
local function rounds(first)
  growth.source, growth.chunk = 0, 0
  for i = 1, ROUNDS do
    local start = collectgarbage("count")
    local source, name = ("\n"):rep(i) .. "for _ = 1, 50 do local _ = {} end", "=round" .. first + i --> sum("source")
    local middle = collectgarbage("count")
    local chunk = assert(loadstring(source, name)) --> sum("chunk")
    growth.source = growth.source + (middle - start) * 1024
    growth.chunk = growth.chunk + (collectgarbage("count") - middle) * 1024
    chunk()
    chunk, source, name = nil, nil, nil
    collectgarbage()
    collectgarbage("stop")
  end
end

---- Run ------------------------------------------------------------------------------------------------------------

local function all()
  for i = 1, #work do work[i]() end
end

-- Whatever happens only once happens now: stacks grow, methods are looked up, the table of strings gets room.
-- So does the table of all strings: it is half empty when it has just grown, by more than anything else does here.
local strings = {}
for i = 1, 300000 do strings[i] = false end
for i = 1, #strings do
  local grown = measured(function() strings[i] = "s" .. i end)
  if i >= 20000 and grown > 60000 then break end
end
all()
collectgarbage()
collectgarbage("stop")
calls.compare = 0
-- The garbage collector has made the stack smaller.
local function deep(depth) return depth > 0 and 1 + deep(depth - 1) or 0 end
deep(100)
local filler = string.rep("x", 100000)

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")

local first = fresh(ROUNDS)
local begin = string.rep("b", BEGIN)
local before = collectgarbage("count")
all()
rounds(first)
-- The garbage collector has made the buffer of string.rep smaller.
local middle = collectgarbage("count")
local larger = string.rep("l", END + 1000) --> sum("larger")
growth.larger = (collectgarbage("count") - middle) * 1024
local after = collectgarbage("count")
local final = string.rep("e", END)

notes()
for i = 1, ROUNDS do
  report[#report + 1] = ("round round%d %d 50 %d"):format(first + i, i + 1, size.TAB)
end
report[#report + 1] = ("mark %d %d"):format(BEGIN, END)
report[#report + 1] = ("heap %d"):format((after - before) * 1024)
io.stdout:write(table.concat(report, "\n"), "\ndone\n")
io.stdout:flush()
io.stdin:read("*l")
assert(begin and larger and final and filler)
os.exit(0)
