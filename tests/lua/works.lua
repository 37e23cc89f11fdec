-- Works for so many milliseconds of CPU time, and exits with a code: works.lua MILLISECONDS CODE
local limit = tonumber(arg[1]) / 1000
local function work()
    local sum = 0
    while os.clock() < limit do
        for index = 1, 100 do
            sum = sum + #tostring(index)
        end
    end
    return sum
end
io.write("begins\n")
work()
io.write("ends\n")
os.exit(tonumber(arg[2] or 0))
