-- The shortest program of all. By ffi.
dofile("prelude.lua")
print("ready")
io.stdout:flush()
io.read()
if arg[4] == "truth" then done() end
while true do end
