//! nginx whose requests have IDs in variables, in the ways in which nginx, Kong, APISIX and other programs have them. Each request
//! computes in a function of its own that is named after its ID: the function on a sample's stack tells what the label has to be.

use std::cell::RefCell;
use std::fmt::Write as _;

use anyhow::Result;
use fastrand::Rng;

use crate::folded::{Folded, Stack};
use crate::nginx::Nginx;
use crate::requests::{Checked, Requests};

/// Where a program has the ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdSource {
    /// `$request_id`, which nginx makes up when it is first asked for it.
    Nginx,
    /// `$kong_request_id`, to which the configuration gives the ID of nginx.
    Kong,
    /// APISIX: `$opentelemetry_trace_id`, which Lua code sets for some requests, else `$apisix_request_id`.
    Apisix,
    /// A variable of the program's own with UUIDs.
    Own,
}

impl IdSource {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Nginx, Self::Kong, Self::Apisix, Self::Own];

    /// The option that finds the IDs.
    pub const fn option(self) -> &'static str {
        match self {
            Self::Own => "--trace-ids=$My_Trace",
            _ => "--trace-ids",
        }
    }

    /// The part of nginx's configuration that makes the variable.
    const fn variables(self) -> &'static str {
        match self {
            Self::Nginx => "",
            Self::Kong => "set $kong_request_id $request_id;",
            Self::Apisix => "set $opentelemetry_trace_id ''; set $apisix_request_id $request_id;",
            Self::Own => "set $my_trace '';",
        }
    }

    /// A Lua function that gives a request its ID, and one that returns the ID that it has, without giving it one.
    const fn functions(self) -> &'static str {
        match self {
            Self::Nginx => {
                "function give() ngx.ctx.given = true return ngx.var.request_id end
                 function current() return ngx.ctx.given and ngx.var.request_id or nil end"
            }
            Self::Kong => {
                "function give() end
                 function current() return ngx.var.kong_request_id end"
            }
            Self::Apisix => {
                "function give()
                     if math.random(2) == 1 then ngx.var.opentelemetry_trace_id = random_hex(32) end
                 end
                 function current()
                     local id = ngx.var.opentelemetry_trace_id
                     return id ~= '' and id or ngx.var.apisix_request_id
                 end"
            }
            Self::Own => {
                "function give()
                     local h = random_hex
                     ngx.var.my_trace = table.concat({ h(8), h(4), h(4), h(4), h(12) }, '-')
                 end
                 function current()
                     local id = ngx.var.my_trace
                     return id ~= '' and id or nil
                 end"
            }
        }
    }
}

/// The number of locations.
const LOCATIONS: usize = 6;

/// What a function is named after if its request has no ID yet.
const NONE: &str = "none";

/// What a test knows of the requests.
#[derive(Debug)]
pub struct TracedSite;

impl TracedSite {
    /// Starts nginx with a random configuration of a seed; [`None`] where this system has none.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(source: IdSource, seed: u64) -> Result<Option<(Nginx, Self)>> {
        let random = RefCell::new(Rng::with_seed(seed));
        let nginx = Nginx::configured(|_, listen| configuration(source, &mut random.borrow_mut(), listen))?;
        Ok(nginx.map(|nginx| (nginx, Self)))
    }

    /// Asks for all locations again and again, from several connections at once.
    pub fn load(&self, nginx: &Nginx, seed: u64) -> Requests {
        let uris = (0..LOCATIONS).map(|number| format!("/{number}"));
        Requests::start(uris.collect(), &nginx.socket(), seed)
    }

    /// Compares stacks that are grouped by trace ID with what their functions tell.
    ///
    /// # Errors
    /// If a stack has no group.
    pub fn check(&self, folded: &Folded) -> Result<Checked> {
        Checked::of(folded, &["[trace_id not known]", "[request not known]"], |stack, group| {
            let truth = truth(stack)?;
            let wanted = if truth == NONE { "[no trace_id]" } else { truth };
            Some((wanted.to_owned(), group == wanted))
        })
    }
}

/// What the function on a stack is named after.
fn truth(stack: &Stack) -> Option<&str> {
    stack.frames.iter().rev().find_map(|frame| Some(frame.split_once("id=")?.1.split_once(':')?.0))
}

fn configuration(source: IdSource, random: &mut Rng, listen: &str) -> Result<String> {
    // Other variables move the numbers of those that matter, and have texts that look like IDs, the same in all requests.
    let mut others = String::new();
    for number in 0..random.usize(..30) {
        let text = ["", "plain", "0123456789abcdef0123456789abcdef", "$host-and-more-than-16"][random.usize(..4)];
        writeln!(others, "set $other_{number} '{text}';")?;
    }
    let (early, late) = if random.bool() { (others.as_str(), "") } else { ("", others.as_str()) };
    let mut locations = String::new();
    for number in 0..LOCATIONS {
        let loops = random.u32(3_000..40_000);
        let access = match random.u32(..3) {
            0 => format!("work({loops}) give() work({loops})"),
            1 => "give()".to_owned(),
            _ => format!("give() ngx.sleep(0.001) work({loops})"),
        };
        let content = match number % 6 {
            0 => format!("coroutine.wrap(function() work({loops}) coroutine.yield() work({loops}) end)()"),
            1 => format!("ngx.location.capture('/sub') work({loops})"),
            2 => format!("ngx.timer.at(0, function() lost({loops}) end) work({loops})"),
            3 => format!("ngx.sleep(0.002) work({loops})"),
            4 => {
                format!("local t = ngx.thread.spawn(function() ngx.sleep(0.001) work({loops}) end) ngx.thread.wait(t)")
            }
            _ => format!("work({loops}) pcall(function() work({loops}) end)"),
        };
        writeln!(
            locations,
            "location = /{number} {{
                 access_by_lua_block {{ {access} }}
                 content_by_lua_block {{ {content} ngx.say('x') }}
                 log_by_lua_block {{ work({loops}) }}
             }}"
        )?;
    }
    let (variables, functions) = (source.variables(), source.functions());
    Ok(format!(
        "log_format traced '$request_id';
         init_worker_by_lua_block {{
             function random_hex(length)
                 local digits = {{}}
                 for at = 1, length do digits[at] = ('%x'):format(math.random(0, 15)) end
                 return table.concat(digits)
             end
             {functions}
             local function named(id, loops)
                 local f = loadstring('local n = ... local x = 0 for i = 1, n do x = x + i % 7 end return x', '=id=' .. id)
                 if math.random(3) == 1 then jit.off(f) end
                 f(loops)
                 return 1
             end
             function work(loops) return named(current() or '{NONE}', loops) end
             function lost(loops) return named('{NONE}', loops) end
         }}
         server {{
             listen {listen};
             {early}
             {variables}
             {late}
             location = /sub {{
                 content_by_lua_block {{ ngx.ctx.given = true give() work(3000) ngx.say('y') }}
             }}
             {locations}
         }}\n"
    ))
}
