-- A workload of chunks that live a moment: each is loaded, run and forgotten.
--
--   short_chunks.lua SECONDS SEED LONGEST
--
-- The name of a chunk is a random one of random length, up to LONGEST and some characters, and tells by itself whether it is whole: a digest of the other characters
-- is its end. It prints `ready` and waits for a line on standard input; after SECONDS of CPU time it prints `done`, and waits for
-- another line before it exits.
local seconds, seed, longest = tonumber(arg[1]), tonumber(arg[2]), tonumber(arg[3])
math.randomseed(seed)

local function named()
    local digits, digest = {}, 7
    for at = 1, math.random(1, longest) do
        local digit = math.random(0, 15)
        digits[at], digest = ("%x"):format(digit), (digest * 31 + digit) % 9973
    end
    return ("%s-%04d."):format(table.concat(digits), digest)
end

local kept = {}

local function run()
    local lines = ("\n"):rep(math.random(0, 9))
    local locals = ""
    for number = 1, math.random(0, 4) do locals = locals .. " local a" .. number .. " = " .. number end
    local source = lines .. "local n = ..." .. locals .. " local x, t = 0 for i = 1, n do x = x + i % 7 end t = { n } return x"
    local chunk = assert(loadstring(source, "=" .. named()))
    if math.random(3) == 1 then jit.off(chunk) end
    chunk(math.random(2000, 20000))
    -- What lies between: buffers and tables of all sizes, some of which stay for a while.
    kept[math.random(64)] = ("x"):rep(math.random(1, 400)) .. seed
    kept[math.random(64)] = { math.random(), math.random() }
end

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read("*l")
local clock = os.clock
local ends = clock() + seconds
while clock() < ends do
    for _ = 1, 10 do run() end
    if math.random(4) == 1 then collectgarbage(math.random(2) == 1 and "collect" or "step") end
end
io.stdout:write("done\n")
io.stdout:flush()
io.stdin:read("*l")
os.exit(0)
