-- A Tarantool that stores each visit in a space, and notes it in a Lua table, too, that nobody clears.
--
--   tarantool leaking_box.lua FOLDER
--
-- It keeps its files in FOLDER, prints `ready`, waits for a line on standard input, and works until it is ended. The marks after
-- `--@` name lines for the tests.

local fiber = require("fiber")

box.cfg({ memtx_memory = 64 * 2 ^ 20, wal_mode = "none", work_dir = arg[1], log = "log" })
local space = box.schema.space.create("visits")
space:create_index("primary")

local noted = {}

local function greeting(number)
  local words = {}
  for word in ("welcome back to the shop, dear visitor"):gmatch("%a+") do
    words[#words + 1] = "<b>" .. word .. "</b>"
  end
  return table.concat(words, " ") .. number % 1000
end

local function store(number)
  return space:replace({ number % 10000, greeting(number), number })
end

-- Most of what it makes is garbage soon.
local function visit(number)
  for turn = 1, 20 do greeting(turn) end
  local tuple = store(number)
  noted[#noted + 1] = { at = number, who = tuple[1] } --@ leak
end

io.stdout:write("ready\n")
io.stdout:flush()
io.stdin:read()
local number = 0
while true do
  for _ = 1, 100 do
    number = number + 1
    visit(number)
  end
  fiber.sleep(0)
end
