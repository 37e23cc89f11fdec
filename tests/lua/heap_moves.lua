-- A store that grows, and that is reached on another, shorter way meanwhile.
--
--   heap_moves.lua ENTRIES
--
-- It prints `ready`, waits for a line on standard input, gives the store a second name and a tenth more entries, prints
-- `done`, and waits for another line before it exits. What it does is compiled, so that traces refer to the store, too.

local entries = tonumber(arg[1]) or 1000

app = { state = { cache = { store = {} } } }

local function fill(store, first, last)
  for number = first, last do store["key " .. number] = { id = number, text = "value " .. number } end
end

local function sum(store)
  local sum = 0
  for number = 1, 1000 do sum = sum + store["key " .. number].id end
  return sum
end

-- Coroutines, each but the first on the stack of another one, and with something that nothing else has.
local function nest(depth)
  return coroutine.wrap(function()
    local inner = depth > 1 and nest(depth - 1)
    if inner then inner() end
    local own = { depth = depth, text = ("x"):rep(1000) .. depth }
    coroutine.yield()
    return inner, own
  end)
end
local outer = nest(5)
outer()

fill(app.state.cache.store, 1, entries)
for _ = 1, 10 do sum(app.state.cache.store) end
collectgarbage()
collectgarbage()
io.stdout:write("ready\n")
io.stdout:flush()
io.read()
aka = app.state.cache.store
fill(aka, entries + 1, entries * 1.1)
for _ = 1, 10 do sum(aka) end
collectgarbage()
collectgarbage()
io.stdout:write("done\n")
io.stdout:flush()
io.read()
outer()
