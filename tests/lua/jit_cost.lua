-- Spends its time compiled and in the interpreter, for reasons that are known, and measures how much of each. It makes no
-- garbage. The marks after `--@` name lines for the tests.

local clock = os.clock
local tell = dofile("tell.lua")

local function off(i) --@ turned off
    return (i * 3 + 1) % 11
end
jit.off(off)

-- Blacklisted, since what it calls is not compiled.
local function calls_off(n)
    local sum = 0
    for i = 1, n do --@ blacklisted
        sum = sum + off(i) % 7
    end
    return sum
end

local function compiled(n)
    local sum = 0
    for i = 1, n do --@ compiled
        sum = sum + i % 7
    end
    return sum
end

-- Calls of functions with variable arguments are not counted. Nothing that is compiled calls this one.
local function vararg(...) --@ vararg
    local a, b = ...
    a = a * 3 % 101 + b; b = b * 5 % 103 + a; a = a * 7 % 107 + b; b = b * 11 % 109 + a
    a = a * 3 % 101 + b; b = b * 5 % 103 + a; a = a * 7 % 107 + b; b = b * 11 % 109 + a
    a = a * 3 % 101 + b; b = b * 5 % 103 + a; a = a * 7 % 107 + b; b = b * 11 % 109 + a
    a = a * 3 % 101 + b; b = b * 5 % 103 + a; a = a * 7 % 107 + b; b = b * 11 % 109 + a
    a = a * 3 % 101 + b; b = b * 5 % 103 + a; a = a * 7 % 107 + b; b = b * 11 % 109 + a
    a = a * 3 % 101 + b; b = b * 5 % 103 + a; a = a * 7 % 107 + b; b = b * 11 % 109 + a
    return a % 13
end

local spent = { blacklisted = 0, compiled = 0, vararg = 0 }

local function work(seconds)
    local began = clock()
    repeat
        local first = clock()
        calls_off(100000)
        local second = clock()
        compiled(3000000)
        local third = clock()
        for i = 1, 10000 do vararg(i, 2) end
        local fourth = clock()
        spent.blacklisted = spent.blacklisted + second - first
        spent.compiled = spent.compiled + third - second
        spent.vararg = spent.vararg + fourth - third
    until fourth - began >= seconds
    return clock() - began
end
jit.off(work)

-- All that is going to be compiled or blacklisted is, before it is looked at.
calls_off(500000)
work(0.05)
spent.blacklisted, spent.compiled, spent.vararg = 0, 0, 0

tell("ready")
local all = work(tonumber((arg or {})[1]) or 1.5)
for name, seconds in pairs(spent) do io.stdout:write(("%s %.6f\n"):format(name, seconds / all)) end
tell("done")
