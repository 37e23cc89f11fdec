//! The plugin of Kong or APISIX that a stack is in.
//!
//! Kong keeps the name of the plugin that runs nowhere. But in both programs the code of a plugin is in a folder or file with its
//! name: Kong loads [`kong.plugins.NAME.handler`], APISIX [`apisix.plugins.NAME`].
//!
//! [`kong.plugins.NAME.handler`]: https://github.com/Kong/kong/blob/22246ef28c16842098369b494eef879222e30c7b/kong/db/dao/plugins.lua#L162-L163
//! [`apisix.plugins.NAME`]: https://github.com/apache/apisix/blob/f519a0f04ccfd4c13b5d06caf34bcde8c8593980/apisix/plugin.lua#L200-L205

/// The plugin whose code this chunk is, given its name as it is shown: the path of its file.
pub fn plugin_of(chunk: &str) -> Option<&str> {
    const KONG: &str = "kong/plugins/";
    const APISIX: [&str; 2] = ["apisix/plugins/", "apisix/stream/plugins/"];
    let below = |folder: &str| {
        let at = chunk.rfind(folder)?;
        // The whole name of a folder.
        let is_whole = at == 0 || chunk.as_bytes()[at - 1] == b'/';
        is_whole.then(|| &chunk[at + folder.len()..])
    };
    let name = match below(KONG) {
        Some(file) => file.split_once('/').map(|(name, _)| name),
        None => APISIX.into_iter().find_map(below).and_then(|file| match file.split_once('/') {
            Some((name, _)) => Some(name),
            None => file.strip_suffix(".lua").or_else(|| file.strip_suffix(".ljbc")),
        }),
    };
    name.filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_told_by_their_files() {
        for (chunk, plugin) in [
            ("/usr/local/share/lua/5.1/kong/plugins/rate-limiting/handler.lua", Some("rate-limiting")),
            ("./kong/plugins/rate-limiting/policies/init.lua", Some("rate-limiting")),
            ("kong/plugins/base_plugin.lua", None),
            ("/usr/local/apisix/apisix/plugins/limit-req.lua", Some("limit-req")),
            ("/usr/local/apisix/apisix/plugins/ai-proxy/base.lua", Some("ai-proxy")),
            ("/opt/apisix/stream/plugins/mqtt-proxy.lua", Some("mqtt-proxy")),
            ("/usr/local/apisix/apisix/plugin.lua", None),
            ("/home/me/hongkong/plugins/a/handler.lua", None),
            ("/srv/kong/plugins/mine/kong/plugins/other/handler.lua", Some("other")),
            ("apisix/plugins/.lua", None),
            ("kong/plugins//handler.lua", None),
            ("[string \"return 1\"]", None),
            ("", None),
        ] {
            assert_eq!(plugin_of(chunk), plugin, "{chunk}");
        }
    }
}
