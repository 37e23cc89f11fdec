-- A program that is made from a number, and counts the bytes that it allocates: some tables stay alive, and turns of work
-- make garbage, with or without a pause between them. It frees nothing explicitly. It writes the turns so far, and what a
-- turn allocates, into a file as two numbers of 8 bytes.
--
-- Arguments: the file, the number.

local ffi = require("ffi")
ffi.cdef [[
int poll(void *, unsigned long, int);
int open(const char *, int, int);
long pwrite(int, const void *, unsigned long, long);
]]
local C = ffi.C
local CREATE, WRITE = 64, 1
local pow = function(exponent) return 10 ^ exponent end

local seed = tonumber(arg[2])
math.randomseed(seed)
local random = math.random
local keep = {}
for i = 1, pow(1 + random() * 3.5) do keep[i] = { i } end
local pause = ({ 0, 0, 1, 2, 5, 20, 50 })[random(7)]
local work, garbage, kind = pow(1 + random() * 4), pow(random() * 3.5), random(3)
if random(3) == 1 then jit.off() end

local slots, sum = {}, 0
local function turn()
  for i = 1, garbage do
    local made
    if kind == 1 then made = { i } elseif kind == 2 then made = { i, i, i, i, i } else made = { i, {} } end
    slots[i % 64 + 1] = made
  end
  for i = 1, work do sum = (sum + i) % 1000003 end
end

-- What is to be compiled is compiled; then the collector waits while some turns are counted.
local began = os.clock()
while os.clock() - began < 0.3 do turn() end
collectgarbage()
collectgarbage("stop")
local before, turns = collectgarbage("count"), 0
repeat
  turn()
  turns = turns + 1
until collectgarbage("count") - before > 8000
before = collectgarbage("count")
for _ = 1, turns do turn() end
local each = (collectgarbage("count") - before) * 1024 / turns
collectgarbage("restart")
collectgarbage()

local file = C.open(arg[1], CREATE + WRITE, 420)
local told = ffi.new("double[2]", { 0, each })
C.pwrite(file, told, 16, 0)
io.write("ready\n")
io.flush()
io.read()
local done, every, last = 0, 1, os.clock()
while true do
  turn()
  done = done + 1
  if pause > 0 then C.poll(nil, 0, pause) end
  if done % every == 0 then
    told[0] = done
    C.pwrite(file, told, 16, 0)
    -- To tell it often costs more than it tells.
    if pause == 0 and os.clock() - last < 0.005 then every = every * 2 end
    last = os.clock()
  end
end
