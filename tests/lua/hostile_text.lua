-- A program that names all that it can name after what terminals obey, readers take for something else, and formats take
-- for their own ends: itself, chunks, functions, keys, values.

local ffi = require("ffi")
ffi.cdef("int prctl(int, const char *, unsigned long, unsigned long, unsigned long);")

-- Erase the screen, ring the bell, begin a line, turn the text around, C1's CSI, no UTF-8.
local EVIL = "\27[2J\7\nFORGED;\"'<script>\226\128\174\194\155\255\r\8"
local PR_SET_NAME = 15
ffi.C.prctl(PR_SET_NAME, "\27\7\nFORGED\226\128\174", 0, 0, 0)

_G[EVIL] = {}
for i = 1, 2000 do
  _G[EVIL][i] = EVIL .. i
end

local CODE = ([[
  local t = ...
  t[NAME] = function(turns)
    local EVIL, n, kept = NAME, 0, nil
    for i = 1, turns do n = (n + i * 7) % 1000003 end
    for i = 1, 50 do kept = { n, EVIL } end
    return kept
  end
  for _ = 1, 20 do t[NAME](20000) end
]]):gsub("NAME", function() return ("%q"):format(EVIL):gsub("\n", "n"):gsub("\r", "\\r") end)

local chunks = {}
for i, name in ipairs({ "@" .. EVIL .. ".lua", "=" .. EVIL, "--" .. EVIL, "@" .. ("y"):rep(10240) .. EVIL }) do
  chunks[i] = assert(loadstring(CODE, name))
end

coroutine.wrap(function(evil) coroutine.yield(evil) end)(EVIL)
io.stdout:write("ready\n")
io.stdout:flush()
while true do
  for _, chunk in ipairs(chunks) do
    chunk({})
  end
end
