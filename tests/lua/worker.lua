-- What each worker of nginx does as soon as it starts: it computes, in a timer, so in a coroutine. Its master runs no
-- Lua by then.

local kept

local function compute(count)
    local sum = 0
    for index = 1, count do
        sum = sum + #tostring(index)
    end
    kept = { sum } -- escapes, so that compiled code allocates it, too
    return sum
end

-- Workers that nobody ends do not compute for ever.
local function work()
    while os.clock() < 60 do
        compute(1000)
    end
end

assert(ngx.timer.at(0, work))
