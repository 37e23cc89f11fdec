-- Very many coroutines that wait, in some hundred places, while the program works at an even pace.
--
--   waits_many.lua COROUTINES MOVES
--
-- It prints `ready` and waits for a line on standard input. Then it takes turns without end: some 10 ms of work, in which each
-- hundredth of a second's part of MOVES coroutines are resumed and wait again. After a turn it prints when it began, in seconds
-- since the epoch, and the CPU time that it took, in seconds.

local count, moves = tonumber(arg[1]), tonumber(arg[2])
jit.off()
math.randomseed(1)

local bodies = {}
for number = 1, 100 do
  bodies[number] = assert(loadstring(([[
    local function wait(depth, turn)
      if depth > 0 then return wait(depth - 1, turn), depth end
      coroutine.yield(turn)
      return turn
    end
    local turn = 0
    while true do
      turn = turn + 1
      wait(%d, turn)
    end
  ]]):format(number % 12), "=body" .. number))
end
local threads = {}
for index = 1, count do
  threads[index] = coroutine.create(bodies[math.random(#bodies)])
  coroutine.resume(threads[index])
end

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
while true do
  local began, start = os.time(), os.clock()
  for _ = 1, moves / 100 do coroutine.resume(threads[math.random(count)]) end
  local sum = 0
  for index = 1, 300000 do sum = sum + index % 7 end
  io.stdout:write(("%d %.6f\n"):format(began, os.clock() - start))
  io.stdout:flush()
end
