-- A fiber that sleeps, so that Tarantool waits in its event loop.

io.stdout:write("ready\n")
io.stdout:flush()
require("fiber").sleep(1000)
