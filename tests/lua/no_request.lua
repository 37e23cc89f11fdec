-- Computes and allocates, with something in the word that coroutines have for their embedder which is no request of nginx.
local ffi = require "ffi"
local exdata = require "thread.exdata"

local case = arg[1]
local words = ffi.new("uint64_t[8]")
local array = ffi.new("uint64_t[8]")
local location = ffi.new("uint64_t[32]")
local name = ffi.new("char[16]", "/cart")

local function address(of)
    return ffi.cast("uint64_t", ffi.cast("uintptr_t", ffi.cast("void *", of)))
end

if case == "garbage" then
    exdata(ffi.cast("void *", 0x123456789000ULL))
elseif case == "zeros" then
    exdata(ffi.cast("void *", words))
elseif case == "nearly" or case == "nameless" then
    -- As nginx has it, but for what points back.
    words[0] = 0x50545448
    for index = 1, 5 do
        words[index] = address(array)
    end
    array[0] = address(location)
    if case == "nearly" then
        location[0] = 5
        location[1] = address(name)
        location[8] = address(array) + 8
    end
    exdata(ffi.cast("void *", words))
end

io.stdout:write("ready\n")
io.stdout:flush()
local function burn()
    local x = 0
    for i = 1, 1000000 do
        x = x + i % 7
    end
    return { x }
end
local last
while true do
    last = burn()
end
