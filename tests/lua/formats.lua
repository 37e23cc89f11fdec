-- A workload for looking at profiles: interpreted and compiled code, C code, garbage, and memory that is kept.
--
-- It says `ready`, and begins at the line `go`. It says `done` after as much CPU time as its argument says, in seconds.

local function interpreted(n)
  local sum = 0
  for i = 1, n do
    sum = sum + i % 7
  end
  return sum
end
jit.off(interpreted)

local function compiled(n)
  local sum = 0
  for i = 1, n do
    sum = sum + i % 7
  end
  return sum
end

local function garbage(n)
  local last
  for i = 1, n do
    last = { i, tostring(i) }
  end
  return last
end

local kept = {}
local function keeper(n)
  for i = 1, n do
    kept[#kept + 1] = { i }
  end
end
jit.off(keeper)

local function sorter(n)
  local numbers = {}
  for i = 1, n do
    numbers[i] = (i * 7919) % n
  end
  table.sort(numbers, function(a, b) return a < b end)
end

print('ready')
io.stdout:flush()
io.read()
local finish = os.clock() + tonumber(arg[1])
while os.clock() < finish do
  interpreted(40000)
  compiled(400000)
  garbage(500)
  sorter(300)
  keeper(10)
end
print('done')
io.stdout:flush()
io.read()
