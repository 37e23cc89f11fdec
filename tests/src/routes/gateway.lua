-- Answers requests as a gateway does. `R` has the routes, `F.noneN` compute where there is no route.

local clear, new = require("table.clear"), require("table.new")
local get_ctx_table = require("resty.core.ctx").get_ctx_table
local random = math.random
local pool, stash, ended = {}, {}, {}

local function fetch()
    return table.remove(pool) or new(0, random(0, 20))
end

local function release(t)
    clear(t)
    pool[#pool + 1] = t
end

-- The table that has the route, and how a route gets into it.
local function set(ctx, route)
    if F.kind == "kong" then
        ctx.service = { name = "not this one" }
        ctx.route = route.fields
    else
        local api_ctx = ctx.api_ctx
        api_ctx.matched_route = { value = route.fields }
        api_ctx.route_id = route.fields.id
        api_ctx.route_name = route.fields.name
    end
end

function F.rewrite()
    F.none1()
    F.wait1()
    local ctx
    if random(2) == 1 then
        ctx = get_ctx_table(fetch())
    else
        ctx = ngx.ctx
    end
    ctx.number = tonumber(ngx.var.uri:sub(2))
    if F.kind == "apisix" then ctx.api_ctx = fetch() end
    F.none2()
end

function F.access()
    local ctx = ngx.ctx
    F.none3()
    local route = R[ctx.number]
    -- Sometimes there is much in the table before.
    for i = 1, random(0, 3) * random(0, 30) do ctx[names[i]] = i end
    set(ctx, route)
    route.work()
end

-- Tables that have the route from the beginning change while the request has them.
local function change(how, route, ctx)
    for _ = 1, 50 do
        local own = { number = ctx.number }
        if F.kind == "apisix" then own.api_ctx = {} end
        set(own, route)
        ngx.ctx = own
        route[how](own.api_ctx or own)
    end
    ngx.ctx = ctx
    route.work()
end

local ways = {
    function(work) work() end,
    function(work, route) work() route.wait() work() end,
    function(work) coroutine.wrap(function() work() coroutine.yield() work() end)() end,
    function(work, route) ngx.thread.wait(ngx.thread.spawn(function() work() route.wait() work() end)) end,
    function(work) ngx.location.capture("/sub") work() end,
    function(_, route, ctx) change("grow", route, ctx) end,
    function(work, _, ctx) ngx.ctx = {} F.none4() F.wait4() ngx.ctx = ctx work() end,
    function(work) ngx.timer.at(0, function() F.none5() end) work() end,
}

if F.bytes then
    ways[#ways + 1] = function(_, route, ctx) change("shrink", route, ctx) end
end

function F.content()
    local ctx = ngx.ctx
    local route = R[ctx.number]
    ways[random(#ways)](route.work, route, ctx)
    if random(4) == 1 then
        local key = tostring(random(1e9))
        stash[key] = ctx
        ngx.var.stashed = key
        return ngx.exec("@again")
    end
    ngx.say("x")
end

-- After a redirect there is no table any more.
function F.again()
    F.none0()
    F.wait0()
    local key = ngx.var.stashed
    ngx.ctx = stash[key]
    stash[key] = nil
    local route = R[ngx.ctx.number]
    route.work()
    route.wait()
    ngx.say("again")
end

function F.header_filter()
    local ctx = ngx.ctx
    if ctx.number then R[ctx.number].work() end
end

function F.log()
    local ctx = ngx.ctx
    if not ctx.number then return end
    R[ctx.number].work()
    ended[ctx.number] = (ended[ctx.number] or 0) + 1
    if ctx.api_ctx then release(ctx.api_ctx) end
    release(ctx)
    F.none1()
end

-- How many requests of each route have ended.
function F.say_ended()
    for number, count in pairs(ended) do ngx.say(number, " ", count) end
end

return F
