-- Objects that live for different times: a leak, a cache in which each stays for CACHED turns, and temporary ones.
--
--   lifetimes.lua CACHED
--
-- It prints `ready`, waits for a line on standard input, and works until it is ended. It is not compiled. The marks after
-- `--@` name lines for the tests.

if jit then jit.off() end

local CACHED = tonumber(arg[1]) or 30000

local leaked, cache, made = {}, {}, 0

local function work(number)
  local pair = { number, number } --@ temporary
  local text = "number " .. number --@ text
  if number % 10 == 0 then
    leaked[#leaked + 1] = { number } --@ leak
  end
  cache[number % CACHED] = { pair[1], #text } --@ cache
end

io.stdout:write("ready\n")
io.stdout:flush()
io.read()
for number = 1, 1e12 do
  work(number)
end
