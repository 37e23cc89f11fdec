//! nginx whose Lua code runs plugins as Kong and APISIX do. Each plugin computes in a function of its own that is in none of its
//! files: the function on a sample's stack tells what the label has to be.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use fastrand::Rng;

use crate::folded::{Folded, Stack};
use crate::nginx::Nginx;
use crate::requests::{Checked, Requests};
use crate::routes::Gateway;

/// The file with the functions that compute. The first one is for no plugin.
const WORK: &str = "work.lua";

/// How many plugins there are.
const PLUGINS: usize = 6;

/// What a test knows of the plugins.
pub struct PluginSite {
    names: Vec<String>,
    folder: PathBuf,
}

impl PluginSite {
    /// Starts nginx with the plugins of a seed; [`None`] where this system has none.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(gateway: Gateway, seed: u64) -> Result<Option<(Nginx, Self)>> {
        let site = std::cell::RefCell::new(None);
        let nginx = Nginx::configured(|folder, listen| {
            let mut random = Rng::with_seed(seed);
            *site.borrow_mut() = Some(Self::make(&mut random, gateway, folder)?);
            Ok(configuration(gateway, folder, listen))
        })?;
        Ok(nginx.zip(site.into_inner()))
    }

    fn make(random: &mut Rng, gateway: Gateway, folder: &Path) -> Result<Self> {
        let names: Vec<String> = (0..PLUGINS).map(|number| format!("plugin-{number}")).collect();
        let mut work = "local W = {}\n".to_owned();
        for _ in 0..=PLUGINS {
            let body = format!(
                "function() local x = 0 for i = 1, {} do x = x + i % 7 end return x end",
                random.u32(5_000..60_000)
            );
            // Some are not compiled.
            let body = if random.u32(..3) == 0 { format!("off({body})") } else { body };
            writeln!(work, "W[#W + 1] = {body}")?;
        }
        fs::write(folder.join(WORK), work + "return W\n")?;
        for (number, name) in names.iter().enumerate() {
            let own = format!("W[{}]()", number + 2);
            // What it calls of another plugin is for itself; so is what its coroutines and other files do.
            let other = &names[random.usize(..PLUGINS)];
            let body = match random.u32(..5) {
                0 => format!("require('{}').helper(function() {own} end) {own}", module(gateway, other)),
                1 => format!("coroutine.wrap(function() {own} coroutine.yield() {own} end)()"),
                2 => format!("ngx.sleep(0.001) {own}"),
                3 => format!("local _ = pcall(function() {own} end) {own}"),
                _ => own,
            };
            let script = format!(
                "local P = {{}}
                 function P.access() {body} return 1 end
                 function P.helper(f) f() return 1 end
                 return P"
            );
            let path = folder.join(file(gateway, name, random));
            fs::create_dir_all(path.parent().context("a file in no folder")?)?;
            fs::write(path, script)?;
        }
        fs::write(folder.join("gateway.lua"), GATEWAY)?;
        Ok(Self { names, folder: folder.to_owned() })
    }

    /// Asks for all plugins again and again, from several connections at once.
    pub fn load(&self, nginx: &Nginx, seed: u64) -> Requests {
        let uris = (0..self.names.len()).map(|number| format!("/{number}"));
        Requests::start(uris.collect(), &nginx.socket(), seed)
    }

    /// Compares stacks that are grouped by plugin with what their functions tell.
    ///
    /// # Errors
    /// If a stack has no group.
    pub fn check(&self, folded: &Folded) -> Result<Checked> {
        Checked::of(folded, &["[plugin not known]", "[request not known]"], |stack, group| {
            let wanted = self.truth(stack)?.map_or("[no plugin]", |number| &self.names[number]);
            Some((wanted.to_owned(), group == wanted))
        })
    }

    /// The plugin that the function on a stack computes for, or none.
    fn truth(&self, stack: &Stack) -> Option<Option<usize>> {
        let mark = format!("{}:", self.folder.join(WORK).display());
        stack.frames.iter().rev().find_map(|frame| {
            let (_, line) = frame.split_once(&mark)?;
            let line = line.trim_end_matches("_[j]").parse::<usize>().ok()?;
            // The first of the functions is in the second line.
            Some(line.checked_sub(3))
        })
    }
}

/// The name by which a plugin is loaded.
fn module(gateway: Gateway, name: &str) -> String {
    match gateway {
        Gateway::Kong => format!("kong.plugins.{name}.handler"),
        Gateway::Apisix => format!("apisix.plugins.{name}"),
    }
}

/// Where that is.
fn file(gateway: Gateway, name: &str, random: &mut Rng) -> String {
    match gateway {
        Gateway::Kong => format!("kong/plugins/{name}/handler.lua"),
        Gateway::Apisix if random.bool() => format!("apisix/plugins/{name}/init.lua"),
        Gateway::Apisix => format!("apisix/plugins/{name}.lua"),
    }
}

/// Runs plugins in these two ways, as [`execute_collecting_plugins_iterator`] of Kong and [`run_plugin`] of APISIX do.
///
/// [`execute_collecting_plugins_iterator`]: https://github.com/Kong/kong/blob/22246ef28c16842098369b494eef879222e30c7b/kong/init.lua#L367-L425
/// [`run_plugin`]: https://github.com/apache/apisix/blob/f519a0f04ccfd4c13b5d06caf34bcde8c8593980/apisix/plugin.lua#L1350-L1450
const GATEWAY: &str = "
local G = {}
function G.access(module)
    local plugin = require(module)
    W[1]()
    if math.random(2) == 1 then
        local co = coroutine.create(plugin.access)
        coroutine.resume(co)
        while coroutine.status(co) ~= 'dead' do coroutine.resume(co) end
    else
        plugin.access()
    end
    W[1]()
    return 1
end
return G";

fn configuration(gateway: Gateway, folder: &Path, listen: &str) -> String {
    let path = folder.display();
    let prefix = module(gateway, "plugin-");
    let (before, after) = prefix.split_once("plugin-").unwrap_or((&prefix, ""));
    format!(
        "init_by_lua_block {{
             package.path = '{path}/?.lua;{path}/?/init.lua;' .. package.path
             off = function(f) jit.off(f) return f end
             W = dofile('{path}/{WORK}')
             G = dofile('{path}/gateway.lua')
         }}
         server {{
             listen {listen};
             location / {{
                 access_by_lua_block {{ G.access('{before}plugin-' .. ngx.var.uri:sub(2) .. '{after}') }}
                 content_by_lua_block {{ ngx.say('x') }}
             }}
         }}\n"
    )
}
