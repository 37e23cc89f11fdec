//! Checks that the packaged configuration and its page show every setting with its default.

use std::collections::BTreeSet;
use std::fmt::Debug;

use lj_trace_export::SinkConfig;
use lj_trace_store::{RemoteConfig, StoreConfig};
use serde::de::DeserializeOwned;

use super::config::{AgentConfig, OwnLimits, ServiceName};
use super::rules::Rule;

const PACKAGED: &str = include_str!("../../../packaging/agent.toml");
const PAGE: &str = include_str!("../../../docs/agent.md");

/// The file with all settings (`#key = ...`) uncommented, and with the examples (`#   key = ...`), too, if `examples`
/// is set.
fn in_force(examples: bool) -> String {
    let line = |line: &'static str| {
        let setting = line.strip_prefix('#').filter(|rest| !rest.starts_with(' ') && !rest.is_empty());
        setting.or_else(|| line.strip_prefix("#   ").filter(|_| examples)).unwrap_or(line)
    };
    PACKAGED.lines().map(|text| format!("{}\n", line(text))).collect()
}

#[test]
fn what_is_packaged_changes_nothing() {
    assert_eq!(AgentConfig::parse(PACKAGED).unwrap(), AgentConfig::default());
    let mut settings = AgentConfig::parse(&in_force(false)).unwrap();
    assert_eq!(settings.store.take(), Some(StoreConfig::default()));
    assert_eq!(settings, AgentConfig::default());
}

#[test]
fn the_examples_are_taken_and_show_defaults() {
    let config = AgentConfig::parse(&in_force(true)).unwrap();
    assert_eq!((config.select.len(), config.drop.len(), config.service.len(), config.sink.len()), (1, 1, 1, 1));
    let sink = config.sinks().servers.remove(0);
    // A setting without a default is an example.
    let by_default = SinkConfig::new(sink.kind, &sink.url);
    let own = SinkConfig {
        path: sink.path.clone(),
        name: sink.name.clone(),
        tenant: sink.tenant.clone(),
        headers: sink.headers.clone(),
        bearer_token_file: sink.bearer_token_file.clone(),
        basic_auth: sink.basic_auth.clone(),
        ca_file: sink.ca_file.clone(),
        attributes: sink.attributes.clone(),
        ..AgentConfig { sink: vec![by_default], ..AgentConfig::default() }.sinks().servers.remove(0)
    };
    assert_eq!(sink, own);
    assert!(config.store.is_some_and(|store| store.host.is_some() && store.remote.is_some()));
}

/// The keys that a table accepts, from the error message for an unknown key.
fn keys<T: DeserializeOwned + Debug>() -> BTreeSet<String> {
    let message = toml::from_str::<T>("not-one-of-them = 1").unwrap_err().to_string();
    let expected = message.split_once("expected").unwrap().1;
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn each_key_is_in_the_file_and_on_the_page() {
    let tables = [
        keys::<AgentConfig>(),
        keys::<OwnLimits>(),
        keys::<Rule>(),
        keys::<ServiceName>(),
        keys::<SinkConfig>(),
        keys::<StoreConfig>(),
        keys::<RemoteConfig>(),
    ];
    assert!(tables.iter().all(|keys| keys.len() > 1) && tables.iter().flatten().count() > 50, "{tables:?}");
    let file = in_force(true);
    for key in tables.iter().flatten() {
        let is_key = |line: &str| {
            line.starts_with(&format!("{key} = "))
                || [format!("[{key}]"), format!("[[{key}]]"), format!("[store.{key}]")]
                    .iter()
                    .any(|table| line == table)
        };
        assert!(file.lines().any(is_key), "packaging/agent.toml has no {key}");
        let names = [format!("`{key}`"), format!("`[{key}]`"), format!("`[[{key}]]`"), format!("`[store.{key}]`")];
        assert!(names.iter().any(|name| PAGE.contains(name)), "docs/agent.md has no {key}");
    }
}
