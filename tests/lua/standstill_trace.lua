-- Stands still in a C function that a trace has called: what `lj-trace dump` must show of the functions inlined into
-- the trace. The marks after `--@` name lines for the tests.

local ffi = require("ffi")
ffi.cdef("int poll(void *fds, unsigned long count, int timeout);")

-- Rounds enough for the loop to be compiled; the last one waits for ever. A table, since a branch would leave the trace.
local timeouts = {}
for round = 1, 999 do timeouts[round] = 0 end
timeouts[1000] = -1

local function pause(timeout)
    local answered = ffi.C.poll(nil, 0, timeout) --@ waits
    return answered
end

local function step(round)
    local answered = pause(timeouts[round]) --@ calls pause
    return answered + 1
end

local function run(first)
    local sum = 0
    for round = first, #timeouts do
        sum = sum + step(round) --@ calls step
    end
    return sum
end

io.stdout:write("ready\n")
io.stdout:flush()
coroutine.wrap(run)(1) --@ resumes
