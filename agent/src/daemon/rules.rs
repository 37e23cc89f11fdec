//! Which processes are recorded.

use lj_trace_profile::Resource;
use serde::Deserialize;

use super::config::AgentConfig;

/// Selects processes by the attributes of their profiles. All conditions of a rule must hold.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rule {
    /// The name of the command or of its executable.
    pub name: Option<String>,
    /// The systemd unit, with or without `.service`.
    pub unit: Option<String>,
    /// The ID of the container, or its first digits.
    pub container: Option<String>,
    /// An attribute of its profiles, as `KEY=VALUE`: `service.name=shop`.
    pub label: Option<String>,
}

/// The names of the attributes that rules use.
pub mod attribute {
    /// The name of the command.
    pub const COMMAND: &str = "process.command.name";
    /// The executable's file name, without its directory.
    pub const EXECUTABLE: &str = "process.executable.name";
    /// The systemd unit.
    pub const UNIT: &str = "systemd.unit";
    /// The container.
    pub const CONTAINER: &str = "container.id";
}

impl Rule {
    /// Whether it has no conditions.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the rule matches a process with these attributes.
    pub fn chooses(&self, resource: &Resource) -> bool {
        let is = |key: &str, wanted: &str| resource.get(key) == Some(wanted);
        let has = |wanted: &Option<String>, test: &dyn Fn(&str) -> bool| wanted.as_deref().is_none_or(test);
        has(&self.name, &|name| is(attribute::COMMAND, name) || is(attribute::EXECUTABLE, name))
            && has(&self.unit, &|unit| {
                resource
                    .get(attribute::UNIT)
                    .is_some_and(|own| own == unit || own.strip_suffix(".service") == Some(unit))
            })
            && has(&self.container, &|id| resource.get(attribute::CONTAINER).is_some_and(|own| own.starts_with(id)))
            && has(&self.label, &|label| label.split_once('=').is_some_and(|(key, value)| is(key, value)))
    }

    /// Parses a rule of the command line: `name=nginx`, `unit=shop`, `service.name=shop`.
    ///
    /// # Errors
    /// A message that says what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        const EXPECTED: &str = "expected KEY=VALUE with name, unit, container or an attribute as the key: name=nginx";
        let (key, value) =
            text.split_once('=').filter(|(key, value)| !key.is_empty() && !value.is_empty()).ok_or(EXPECTED)?;
        let value = Some(value.to_owned());
        Ok(match key {
            "name" => Self { name: value, ..Self::default() },
            "unit" => Self { unit: value, ..Self::default() },
            "container" => Self { container: value, ..Self::default() },
            _ => Self { label: Some(text.to_owned()), ..Self::default() },
        })
    }
}

/// Why a process is not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOut {
    /// The rules select other processes.
    NotSelected,
    /// A rule drops it.
    Dropped,
}

impl LeftOut {
    /// The reason in a few words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::NotSelected => "no `select` rule chooses it",
            Self::Dropped => "a `drop` rule chooses it",
        }
    }
}

impl AgentConfig {
    /// Why a process with these attributes is not recorded; [`None`] if it is.
    pub fn leaves_out(&self, resource: &Resource) -> Option<LeftOut> {
        let any = |rules: &[Rule]| rules.iter().any(|rule| rule.chooses(resource));
        if !self.select.is_empty() && !any(&self.select) {
            return Some(LeftOut::NotSelected);
        }
        any(&self.drop).then_some(LeftOut::Dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nginx() -> Resource {
        let mut resource = Resource::of_service("shop");
        resource.set(attribute::COMMAND, "nginx");
        resource.set(attribute::UNIT, "nginx.service");
        resource.set(attribute::CONTAINER, "0123abcdef");
        resource
    }

    #[test]
    fn a_rule_chooses_what_all_of_it_fits() {
        for (text, chooses) in [
            ("name=nginx", true),
            ("name=ngin", false),
            ("unit=nginx", true),
            ("unit=nginx.service", true),
            ("unit=shop", false),
            ("container=0123", true),
            ("container=123", false),
            ("service.name=shop", true),
            ("service.name=", false),
            ("team=a", false),
        ] {
            assert_eq!(Rule::parse(text).is_ok_and(|rule| rule.chooses(&nginx())), chooses, "{text}");
        }
        let both = Rule { unit: Some("shop".to_owned()), ..Rule::parse("name=nginx").unwrap() };
        assert!(!both.chooses(&nginx()));
    }

    #[test]
    fn what_is_dropped_is_left_out_of_what_is_selected() {
        let rules = |words: &[&str]| words.iter().map(|word| Rule::parse(word).unwrap()).collect();
        let config = |select: &[&str], drop: &[&str]| AgentConfig {
            select: rules(select),
            drop: rules(drop),
            ..AgentConfig::default()
        };
        assert_eq!(config(&[], &[]).leaves_out(&nginx()), None);
        assert_eq!(config(&["name=luajit", "name=nginx"], &[]).leaves_out(&nginx()), None);
        assert_eq!(config(&["name=luajit"], &[]).leaves_out(&nginx()), Some(LeftOut::NotSelected));
        assert_eq!(config(&["name=nginx"], &["service.name=shop"]).leaves_out(&nginx()), Some(LeftOut::Dropped));
    }
}
