-- Objects that live for different times: a leak, a cache in which each stays for CACHED turns, and temporary ones; tables
-- with parts of their own that do the same, and a list that grows: its slots are replaced by more of them again and again.
--
--   lifetimes.lua CACHED
--
-- It prints `ready`, waits for a line on standard input, and works until it is ended. It is not compiled. The marks after
-- `--@` name lines for the tests.

if jit then jit.off() end

local CACHED = tonumber(arg[1]) or 30000

local leaked, cache, list = {}, {}, {}
for number = 0, 9990, 10 do leaked[number] = false end
for number = 0, CACHED - 1 do cache[number] = false end

local function work(number)
  local pair = { number, number } --@ temporary
  local text = "number " .. number --@ text
  if number % 10 == 0 then
    leaked[number % 1e4] = { number, leaked[number % 1e4] } --@ leak
    list[#list + 1] = number --@ list
  end
  if number % 100 == 0 then
    local object = {} --@ table with parts
    object.number = number --@ hash part
    object.next = leaked.object
    object.text = "text" --@ larger hash part
    leaked.object = object
    local short = {} --@ short table
    short.number = number --@ short part
  end
  cache[number % CACHED] = { pair[1], #text } --@ cache
end

io.stdout:write("ready\n")
io.stdout:flush()
io.read()
for number = 1, 1e12 do
  work(number)
end
